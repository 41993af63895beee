"""What tokens cost: the processor time of scans, reads by key and one-row upserts, with and without them."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from benchmarks.bench import Figure, Result
from benchmarks.few_rows_caller import GET, UPSERT, FewRowsCaller
from benchmarks.measure import CpuRounds
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from streaming_server.access.token_file import create_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.bench import Bench

_SCAN_SECONDS: Final = 3.0
_CALL_SECONDS: Final = 0.5
_KEYS: Final = 20_000


def run(bench: Bench) -> Result:
    """Uses three servers in turn: without tokens, with tokens, and with tokens and an audit log."""
    path = bench.directory / "tokens.jsonl"
    _, token = create_token(path, "benchmark", ["admin:*"], now=datetime.now(UTC))
    store = bench.store
    with (
        BenchmarkServer(store.copy("open")) as plain,
        BenchmarkServer(store.copy("tokens"), tokens=str(path)) as secured,
        BenchmarkServer(
            store.copy("audited"), tokens=str(path), audit_log=str(bench.directory / "audit.jsonl")
        ) as audited,
        Worker(ClientReader, plain.url) as plain_reader,
        Worker(ClientReader, secured.url, token=token) as secured_reader,
        Worker(FewRowsCaller, plain.url, plain.pid, _KEYS) as plain_caller,
        Worker(FewRowsCaller, secured.url, secured.pid, _KEYS, token) as secured_caller,
        Worker(FewRowsCaller, audited.url, audited.pid, _KEYS, token) as audited_caller,
    ):

        def scan(reader: Worker[ClientReader]) -> Callable[[], float]:
            def measure() -> float:
                rows, until = 0, time.monotonic() + _SCAN_SECONDS
                while time.monotonic() < until:
                    rows += reader.call(ClientReader.read).check_rows(bench.rows).rows
                return rows

            return measure

        def calls(caller: Worker[FewRowsCaller], kind: str) -> Callable[[], float]:
            return lambda: float(caller.call(FewRowsCaller.measure, kind, _CALL_SECONDS).calls)

        of_plain, of_secured = (plain.pid, plain_caller.pid), (secured.pid, secured_caller.pid)
        of_audited = (audited.pid, audited_caller.pid)
        few = CpuRounds(
            3 * bench.runs,
            {
                "get": (of_plain, calls(plain_caller, GET)),
                "secured_get": (of_secured, calls(secured_caller, GET)),
                "upsert": (of_plain, calls(plain_caller, UPSERT)),
                "secured_upsert": (of_secured, calls(secured_caller, UPSERT)),
                "audited_upsert": (of_audited, calls(audited_caller, UPSERT)),
            },
        )
        scans = CpuRounds(
            bench.runs,
            {
                "scan": ((plain.pid, plain_reader.pid), scan(plain_reader)),
                "secured_scan": ((secured.pid, secured_reader.pid), scan(secured_reader)),
            },
        )
    return Result(
        figures=[
            Figure(
                name="tokens_scan",
                work="a full scan with a token",
                against="the same scan at a server without tokens",
                unit="ratio",
                spread=scans.ratios("secured_scan", "scan"),
                at_most=1.02,
            ),
            Figure(
                name="tokens_get",
                work="`get` with a token",
                against="the same at a server without tokens",
                unit="ratio",
                spread=few.ratios("secured_get", "get"),
                at_most=1.05,
            ),
            Figure(
                name="tokens_upsert",
                work="a one-row upsert with a token",
                against="the same at a server without tokens",
                unit="ratio",
                spread=few.ratios("secured_upsert", "upsert"),
            ),
            Figure(
                name="audited_upsert",
                work="a one-row upsert with a token, recorded in an audit log",
                against="the same at a server without tokens",
                unit="ratio",
                spread=few.ratios("audited_upsert", "upsert"),
            ),
        ],
        notes=[
            f"Tokens: processor time of the server and the client for each row and each call, in runs of "
            f"{_SCAN_SECONDS:g} s and {_CALL_SECONDS:g} s, on {os.cpu_count()} processors.",
        ],
    )
