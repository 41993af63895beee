"""Measures backups of changed and unchanged tables, the archive, and restores against copying the files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from aio_client.sync import connect
from benchmarks import t4
from benchmarks.bench import Figure, Result
from benchmarks.measure import Spread, progress
from benchmarks.proc import cpu_seconds
from benchmarks.server import BenchmarkServer
from benchmarks.workloads.base_tables import create_filled_table
from streaming_server.engine.backups.restore import restore_all
from streaming_server.engine.backups.restore_plan import plan_backup
from streaming_server.storage.backup.backup_manifest import read_manifest
from streaming_server.storage.backup.backup_store import BackupStore

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client.sync import Client
    from benchmarks.bench import Bench


def run(bench: Bench) -> Result:
    """Backs up new, unchanged and slightly changed tables, then restores and copies their files in turn."""
    data = bench.directory / "backed_up"
    unchanged: list[float] = []
    pauses: list[float] = []
    for number in range(bench.runs):
        location = bench.directory / f"backups-{number}"
        with BenchmarkServer(data, backup_location=str(location)) as server, connect(server.url) as client:
            if not number:
                create_filled_table(client, bench.rows, "bench.backed_up", "off")
            client.table("bench.backed_up").upsert(next(t4.batches(1000, 1000)))
            first, again = _back_up(client), _back_up(client)
        unchanged.append(again / first)
        store = BackupStore(str(location))
        manifest = read_manifest(store, store.manifests()[0])
        pauses.append(manifest.pause_micros / 1000)
        progress(f"  run {number + 1} of {bench.runs}: {first:.2f} s, {again:.3f} s when nothing has changed")
    copying: list[float] = []
    for _ in range(bench.runs):
        copied = _copy(data, bench.directory / "copied")
        started = time.perf_counter()
        restore_all(store, plan_backup(manifest), bench.directory / "restored")
        restored = time.perf_counter() - started
        copying.append(copied / restored)
        shutil.rmtree(bench.directory / "restored")
        progress(f"  copied in {copied:.2f} s, restored in {restored:.2f} s")
    archiving: list[float] = []
    for number in range(bench.runs):
        plain = _written(bench, number, archived=False)
        archiving.append(_written(bench, number, archived=True) / plain)
    size = f"{manifest.bytes / 2**20:,.0f} MiB"
    return Result(
        figures=[
            Figure(
                name="backup_unchanged",
                work=f"back up an unchanged table of {size}, time",
                against="its first backup",
                unit="ratio",
                spread=Spread.of(unchanged),
                at_most=0.02,
            ),
            Figure(
                name="backup_pause",
                work=f"back up {len(manifest.tables[0].states)} buckets: writers paused",
                against="the server's clock",
                unit="ms",
                spread=Spread.of(pauses),
                at_most=250,
            ),
            Figure(
                name="archive",
                work=f"upsert {bench.rows:,} rows while they are archived every second, processor time of the server",
                against="without an archive",
                unit="ratio",
                spread=Spread.of(archiving),
                at_most=1.3,
            ),
            Figure(
                name="restore",
                work=f"restore {size}, speed",
                against="copying the files of the data directory",
                unit="ratio",
                spread=Spread.of(copying),
                at_least=0.5,
            ),
        ],
        notes=["Backups: T4, to a directory on the same disk. The fixed cost of a backup shows with few rows."],
    )


def _written(bench: Bench, number: int, *, archived: bool) -> float:
    """Returns the processor time that upserts take in a server that archives them or not."""
    location, seconds = str(bench.directory / f"archive-{number}"), 1.0 if archived else 0.0
    data = bench.directory / "archived"
    with BenchmarkServer(data, backup_location=location, archive_every_seconds=seconds) as server:
        with connect(server.url) as client:
            client.create_backup()
            started, used = time.perf_counter(), cpu_seconds(server.pid)
            create_filled_table(client, bench.rows, "bench.archived", "off")
            took, used = time.perf_counter() - started, cpu_seconds(server.pid) - used
    shutil.rmtree(data)
    progress(f"  {took:.2f} s, {used:.2f} s of processor time, {'archived' if archived else 'not archived'}")
    return used


def _back_up(client: Client) -> float:
    started = time.perf_counter()
    client.create_backup()
    return time.perf_counter() - started


def _copy(data: Path, target: Path) -> float:
    """Copies a directory durably. Returns the seconds."""
    started = time.perf_counter()
    subprocess.run(["cp", "-r", str(data), str(target)], check=True)
    os.sync()
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    return seconds
