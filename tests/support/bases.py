"""Columnar bases as tests meet them: built anew all the time, waited for, and looked at on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.waiting import await_until, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from aio_client import ScanExplanation, Table

SOON: Final = ("--set", "base_maintenance_seconds=0.02", "--set", "base_cpu_share=1")
"""Arguments of a server that builds the bases that are due within moments."""

WHATEVER_IT_WRITES: Final = ("--set", "base_max_write_amplification=1e12")
"""Arguments of one that builds them anew for a few changes, too."""

ALL_THE_TIME: Final = (*SOON, *WHATEVER_IT_WRITES, "--set", "base_changed_share=0")
"""The same, and any change is reason enough to build one anew."""


async def await_bases(table: Table) -> None:
    """Waits until every bucket of a table is read from a base. Each needs a row. Opens the buckets, and scans them."""
    # With `auto`, bases are for tables that are scanned.
    async with table.scan().stream():
        pass

    async def there() -> bool:
        return is_of_bases(await table.scan().explain())

    await await_until(there, "every bucket has a base")


def is_of_bases(explanation: ScanExplanation) -> bool:
    """Whether a scan would read the base of every bucket that it reads."""
    return explanation.read_path == "columnar" and "have no base" not in explanation.read_path_reason


def bases_on_disk(data_dir: Path, table: str) -> dict[int, list[str]]:
    """The names of what lies where the bases of each bucket are, unfinished ones among it, the oldest first."""
    directory = data_dir.joinpath("tables", *table.split("."), "bases")
    if not directory.is_dir():
        return {}
    return {int(path.name): sorted(base.name for base in path.iterdir()) for path in sorted(directory.iterdir())}


def base_path(data_dir: Path, table: str, bucket: int = 0) -> Path:
    """The directory of the only base of a bucket; waits for that while there are two, because it was built anew."""

    def names() -> list[str]:
        return bases_on_disk(data_dir, table)[bucket]

    wait_until(lambda: len(names()) == 1, "one base of the bucket")
    (name,) = names()
    return data_dir.joinpath("tables", *table.split("."), "bases", f"{bucket:04}", name)


def built_at(data_dir: Path, table: str) -> dict[int, int]:
    """When the only base of each bucket was built, in nanoseconds."""
    buckets = bases_on_disk(data_dir, table)
    return {bucket: (base_path(data_dir, table, bucket) / "manifest.json").stat().st_mtime_ns for bucket in buckets}
