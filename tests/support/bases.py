"""Helpers for columnar bases: server arguments, waiting for bases, and finding their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.waiting import await_until, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import ScanExplanation, Table

SOON: Final = ("--set", "base_maintenance_seconds=0.02", "--set", "base_cpu_share=1")
"""Arguments of a server that builds due bases within moments."""

WHATEVER_IT_WRITES: Final = ("--set", "base_max_write_amplification=1e12")
"""Arguments of a server that also rebuilds bases after a few changes."""

ALL_THE_TIME: Final = (*SOON, *WHATEVER_IT_WRITES, "--set", "base_changed_share=0")
"""Arguments of a server that rebuilds a base after any change."""


async def await_bases(table: Table) -> None:
    """Waits until scans read every bucket of a table from a base. Each bucket must have a row."""
    # With `auto`, the server builds bases only for tables that are scanned in full. Small chunks keep it from reading
    # far ahead: a scan that reached a damaged place of a base would make the server build the base again.
    async with table.scan().with_chunk(rows=1).stream():
        pass

    async def there() -> bool:
        return is_of_bases(await table.scan().explain())

    await await_until(there, "every bucket has a base")


def is_of_bases(explanation: ScanExplanation) -> bool:
    """Returns whether a scan would read all of its buckets from bases."""
    return explanation.read_path == "columnar" and "have no base" not in explanation.read_path_reason


def bases_on_disk(data_dir: Path, table: str) -> dict[int, list[str]]:
    """Returns the names of the bases of each bucket on disk, including unfinished ones, the oldest first."""
    return {
        int(path.name): sorted(base.name for base in path.iterdir())
        for directory in _base_directories(data_dir, table)
        for path in sorted(directory.iterdir())
    }


def _base_directories(data_dir: Path, table: str) -> list[Path]:
    """Returns the directory of bases of a table, or those of its tablets. Leaves out those that do not exist."""
    directory = data_dir.joinpath("tables", *table.split("."))
    return [path for path in (directory / "bases", *sorted(directory.glob("tablets/*/bases"))) if path.is_dir()]


def base_path(data_dir: Path, table: str, bucket: int = 0) -> Path:
    """Returns the directory of the only base of a bucket. Waits while a rebuild has left two."""

    def names() -> list[str]:
        return bases_on_disk(data_dir, table)[bucket]

    wait_until(lambda: len(names()) == 1, "one base of the bucket")
    (name,) = names()
    paths = (directory / f"{bucket:04}" / name for directory in _base_directories(data_dir, table))
    return next(path for path in paths if path.exists())


def built_at(data_dir: Path, table: str) -> dict[int, int]:
    """Returns when the only base of each bucket was built, in nanoseconds."""
    buckets = bases_on_disk(data_dir, table)
    return {bucket: (base_path(data_dir, table, bucket) / "manifest.json").stat().st_mtime_ns for bucket in buckets}
