"""Attempts to use a feature, for the rows of `docs/capabilities.toml` that name them.

An attempt returns if the feature works. Otherwise it raises what a user would see: that is how the check of the table
learns whether ScanKV has the feature. An attempt at what does not exist yet uses it as its users would expect it.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import uuid
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aio_client import agg
from scankv.model.errors import InvalidRequest, NoPrimaryKey
from scankv.model.types.types import parse_schema
from streaming_server.config import load_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client import sync
    from tests.support.command_line import CommandLine

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int64()), ("score", pa.int64())])
ROW = {"id": 1, "day": 1, "score": 7}


class Refused(Exception):
    """The feature cannot be used, which no error of ScanKV says."""


@dataclass(frozen=True)
class ServerToTry:
    """A server with a backup, and clients of it. Typed loosely, because attempts call what does not exist."""

    client: sync.Client
    scankv: CommandLine
    data: Path
    backups: Path

    def create(self, **options: Any) -> Any:
        """Creates a table of its own with a row, of which an attempt differs in what it attempts only."""
        name = f"attempts.t{uuid.uuid4().hex}"
        create: Any = self.client.create_table
        table = create(name, SCHEMA, **{"primary_key": ["id"], "buckets": 4} | options)
        (table.upsert if table.primary_key else table.append)([ROW])
        return table


def count_and_average_and_retract(here: ServerToTry) -> None:
    other = ROW | {"score": 9}
    for function, merged in ((agg.sum(), 16), (agg.avg(), 8)):
        table = here.create(merge_engine="aggregate", aggregators={"day": agg.count(), "score": function})
        table.upsert([other])
        both = table.get(1)
        table.retract([other])
        if (rows := [both, table.get(1)]) != [{"id": 1, "day": 2, "score": merged}, ROW]:
            raise Refused(f"the rows are {rows}")


def be_protected_from_a_sum_that_overflows(here: ServerToTry) -> None:
    table = here.create(merge_engine="aggregate", aggregators={"day": agg.sum(), "score": agg.sum()})
    try:
        table.upsert([{"id": 1, "day": 0, "score": 2**63 - 1}])
    except InvalidRequest as error:
        if "the sum does not fit int64" in str(error):
            return
        raise
    raise Refused(f"the row is {table.get(1)}")


def configure_replicas(here: ServerToTry) -> None:
    load_config({"data": here.data, "replicas": 2})


def leave_the_number_of_tablets_to_the_server(here: ServerToTry) -> None:
    here.create(tablets="auto")


def partition_a_table_with_tablets(here: ServerToTry) -> None:
    here.create(primary_key=["day", "id"], partition_by=["day"], tablets=2)


def create_a_log_table_with_tablets(here: ServerToTry) -> None:
    here.create(primary_key=[], tablets=2)


def change_the_changelog_of_a_table_with_tablets(here: ServerToTry) -> None:
    here.client.alter_table(here.create(tablets=2).name, changelog="upsert")


def import_a_connector_of_another_engine(here: ServerToTry) -> None:
    """Is there a package of another engine, or source code of another language?"""
    for engine in ("flink", "trino", "java"):
        try:
            import_module(f"scankv.{engine}")
        except ModuleNotFoundError:
            continue
        return
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    if not any(path.endswith((".java", ".jar", ".scala", ".kt", ".go", ".rs", ".ts")) for path in listed):
        raise Refused("there is no client but that for Python")


def serve_a_data_directory_in_an_object_store(here: ServerToTry) -> None:
    load_config({"data": "s3://bucket/data"})


def publish_in_another_format(here: ServerToTry) -> None:
    directory = here.backups.parent / "published"
    name = here.create().name
    here.scankv("publish", name, str(directory / "delta"), "--format", "delta")
    messages = []
    for other in ("paimon", "lance", "hudi"):
        refused = here.scankv("publish", name, str(directory / other), "--format", other, code=2)
        messages.append(" ".join(refused.stderr.replace("│", "").split()))
    raise Refused(" ".join(messages))


def find_live_rows_in_open_files(here: ServerToTry) -> None:
    table = here.create(columnar_base="eager")
    table.upsert(pa.table({"id": range(1000), "day": range(1000), "score": range(1000)}))
    for file in here.data.rglob("*"):
        with suppress(OSError):  # directories, and files that the server has removed since
            if file.read_bytes()[:4] == b"PAR1":
                return
    raise Refused("no file of the data directory is a Parquet file")


def read_the_live_table_as_of_yesterday(here: ServerToTry) -> None:
    here.create().scan().as_of(dt.datetime.now(dt.UTC) - dt.timedelta(days=1)).to_arrow()


def pin_a_snapshot_for_eight_days(here: ServerToTry) -> None:
    with here.create().snapshot(ttl=8 * 86_400):
        pass


def restore_into_a_directory_in_use(here: ServerToTry) -> None:
    name = here.create().name
    here.scankv("backups", "create")
    raise Refused(here.scankv.fails("backups", "restore", str(here.backups), "--table", name, "--data", str(here.data)))


def change_the_number_of_buckets(here: ServerToTry) -> None:
    here.client.alter_table(here.create().name, buckets=8)


def choose_the_hash_of_the_buckets(here: ServerToTry) -> None:
    here.create(bucket_hash="fluss")


def write_a_row_without_its_key(here: ServerToTry) -> None:
    here.create().upsert([{"day": 1, "score": 7}])


def create_a_check_constraint(here: ServerToTry) -> None:
    parse_schema("id int64 not null, score int64 check (score > 0)")


def create_a_generated_column(here: ServerToTry) -> None:
    parse_schema("id int64 not null, twice int64 generated always as (id * 2)")


def partition_by_a_column_outside_the_key(here: ServerToTry) -> None:
    here.create(partition_by=["day"])


def merge_or_look_up_in_a_log_table(here: ServerToTry) -> None:
    """Does one of the calls work that merge rows or find them by key?"""
    table: Any = here.create(primary_key=[])
    refused = []
    calls: dict[str, list[Any]] = {"get": [1], "lookup": [[1]], "upsert": [[ROW]], "retract": [[ROW]], "delete": [[1]]}
    for call, arguments in calls.items():
        try:
            getattr(table, call)(*arguments)
        except NoPrimaryKey as error:
            refused.append(f"{call}: {error}")
        else:
            return
    raise Refused("; ".join(refused))


def _is_attempt(name: str, value: object) -> bool:
    return callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == __name__


ATTEMPTS: dict[str, Callable[[ServerToTry], None]] = {
    name: value for name, value in globals().items() if _is_attempt(name, value) and not isinstance(value, type)
}
"""The attempts, by the names that the table has."""
