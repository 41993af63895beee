"""Creates a small data directory with everything that a server keeps on disk, and a record of what must be read.

Each release keeps one: `make fixture` packs it into `tests/fixtures/VERSION/data.tar.gz`. The record is Arrow files and
JSON, so that it does not depend on the code of any version.
"""

from __future__ import annotations

import datetime as dt
import json
import tarfile
import tempfile
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import feather

from aio_client import StartFrom, StopAt, agg, sync
from streaming_server.testing import ServerProcess
from tests.support.bases import SOON, is_of_bases
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from aio_client.sync import Client, Scan, Table

FIXTURES: Final = Path(__file__).parents[1] / "fixtures"

SEVEN_DAYS: Final = 7 * 86_400
"""The longest time to live, in seconds. Only time during which a server runs on the directory counts."""

SERVER_ARGUMENTS: Final = (*SOON, "--set", "write_buffer_bytes=1048576")

ALL_TYPES: Final = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        ("bool", pa.bool_()),
        *((str(type_), type_) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *((str(type_), type_) for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        *((str(type_), type_) for type_ in (pa.float16(), pa.float32(), pa.float64())),
        ("decimal", pa.decimal128(38, 9)),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        *((str(type_), type_) for type_ in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
        *((f"timestamp_{unit}", pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
        ("timestamp_tz", pa.timestamp("us", "Europe/Berlin")),
        ("list", pa.list_(pa.int64())),
        ("struct", pa.struct([("x", pa.int8()), ("tags", pa.list_(pa.string()))])),
        ("map", pa.map_(pa.string(), pa.float64())),
    ]
)
"""All types that can be stored, with all widths and units."""


@dataclass
class Record:
    """The data that a reader of the directory must find.

    Attributes:
        rows: By the name of a read, its rows in the order of the keys or of the changes.
        facts: Everything else, as JSON has it.
    """

    rows: dict[str, pa.Table] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def save(self, directory: Path) -> None:
        """Writes it to files."""
        directory.mkdir()
        for name, rows in self.rows.items():
            feather.write_feather(rows, directory / f"{name}.arrow", compression="zstd")
        (directory / "facts.json").write_text(json.dumps(self.facts, indent=1, sort_keys=True))

    @classmethod
    def load(cls, directory: Path) -> Record:
        """Reads it from files."""
        return cls(
            {path.stem: feather.read_table(path) for path in sorted(directory.glob("*.arrow"))},
            json.loads((directory / "facts.json").read_text()),
        )


def make_data(directory: Path) -> None:
    """Creates `directory/data`, by a server that is then stopped, and `directory/record`."""
    with ServerProcess(directory / "data", *SERVER_ARGUMENTS) as server:
        with sync.connect(server.url) as client:
            write_everything(client)
            record = read_everything(client)
            check(record)
            record.facts["resume_token"] = resume_token_of(client).hex()
        assert server.stop() == 0
    record.save(directory / "record")


def write_everything(client: Client) -> None:
    """Writes tables of all kinds, and creates one of everything that outlives a client."""
    plain = write_plain(client)
    write_types(client)
    write_merging(client)
    write_indexed(client)
    write_based(client)
    write_altered(client)
    plain.snapshot(ttl=SEVEN_DAYS, id="released")
    consume_half(plain)
    write_transactions(client, plain)
    plain.delete([{"id": 3}, {"id": 4}])
    with plain.writer("loader") as writer:
        writer.upsert([{"id": 1000, "name": "of a named writer", "score": None}])
    client.table("fixture.first").lock_columns(["name"], owner="owner-1", ttl=SEVEN_DAYS)


def write_plain(client: Client) -> Table:
    """Writes a table with default options, several buckets, and replaced and deleted rows."""
    plain = client.create_table("fixture.plain", player_schema(), primary_key=["id"], buckets=3)
    plain.upsert([{"id": n, "name": f"player {n}", "score": n * n} for n in range(200)])
    plain.upsert([{"id": n, "name": f"renamed {n}", "score": None} for n in range(0, 200, 7)])
    plain.delete([{"id": n} for n in range(0, 200, 10)])
    return plain


def player_schema() -> pa.Schema:
    """Returns the columns of most tables."""
    return pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("score", pa.int64())])


def write_types(client: Client) -> None:
    """Writes rows with ordinary values, extreme values and nulls of each type, in a table with each compression."""
    time = dt.datetime(2024, 2, 29, 23, 59, 59)
    values: list[Any] = [
        1,
        "a",
        True,
        *[7] * 8,
        *[0.5] * 3,
        Decimal("12345678901234567890.123456789"),
        "Zoë",
        b"\x00\xff",
    ]
    values += [time.date(), *[time.time()] * 4, *[time] * 4, time.replace(tzinfo=dt.UTC)]
    values += [[1, None], {"x": 1, "tags": ["t"]}, [("k", 1.5)]]
    lows = [-(2**31), "", False, -(2**7), -(2**15), -(2**31), -(2**63), *[0] * 4, *[float("-inf")] * 3]
    lows += [Decimal("-0.000000001"), "", b"", dt.date(1, 1, 1), *[dt.time()] * 4, *[dt.datetime(1970, 1, 1)] * 4]
    lows += [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), [], {"x": None, "tags": None}, []]
    nulls = [2, "null", *[None] * (len(ALL_TYPES) - 2)]
    columns = [
        pa.array(column, field.type)
        for field, column in zip(ALL_TYPES, zip(values, lows, nulls, strict=True), strict=True)
    ]
    for compression in ("none", "lz4", "zstd"):
        name = f"fixture.types_{compression}"
        types = client.create_table(name, ALL_TYPES, primary_key=["id", "code"], buckets=1, compression=compression)
        types.upsert(pa.Table.from_arrays(columns, schema=types.schema))


def write_merging(client: Client) -> None:
    """Writes a table of each merge engine, with two rows of each key."""
    schema = player_schema()
    tables = [
        client.create_table("fixture.first", schema, primary_key=["id"], buckets=1, merge_engine="first_row"),
        client.create_table(
            "fixture.versioned",
            schema,
            primary_key=["id"],
            buckets=1,
            merge_engine="versioned",
            version_column="score",
        ),
        client.create_table(
            "fixture.partial",
            schema,
            primary_key=["id"],
            buckets=1,
            merge_engine="partial_update",
            sequence_groups={"score": "name"},
        ),
        client.create_table(
            "fixture.totals",
            schema,
            primary_key=["id"],
            buckets=1,
            merge_engine="aggregate",
            aggregators={"score": agg.sum(), "name": agg.listagg("+")},
        ),
        client.create_table("fixture.upserts", schema, primary_key=["id"], buckets=1, changelog="upsert"),
    ]
    for table in tables:
        table.upsert([{"id": n, "name": "first", "score": 10 * n} for n in range(5)])
        table.upsert([{"id": n, "name": "second", "score": 20 - n} for n in range(5)])


def write_indexed(client: Client) -> None:
    """Writes a table with indexes, one of which is built over existing rows."""
    table = client.create_table(
        "fixture.indexed", player_schema(), primary_key=["id"], buckets=2, indexes=[("name", "score")]
    )
    table.upsert([{"id": n, "name": f"league {n % 3}", "score": n * 31 % 50} for n in range(100)])
    client.alter_table("fixture.indexed", add_indexes=["score"])
    table.delete([{"id": 50}])


def write_based(client: Client) -> None:
    """Writes a table with columnar bases, and changes after the build."""
    table = client.create_table("fixture.based", player_schema(), primary_key=["id"], buckets=2, columnar_base="eager")
    table.upsert([{"id": n, "name": f"player {n}", "score": n} for n in range(300)])
    wait_until(lambda: is_of_bases(table.scan().explain()), "every bucket has a base")
    table.upsert([{"id": 7, "name": "changed since", "score": None}, {"id": 900, "name": "added since", "score": 1}])
    table.delete([{"id": 8}])


def write_altered(client: Client) -> None:
    """Writes a table with rows of two schema versions."""
    table = client.create_table("fixture.altered", player_schema(), primary_key=["id"], buckets=1)
    table.upsert([{"id": 1, "name": "before", "score": 1}])
    table = client.alter_table("fixture.altered", add_columns=pa.schema([("added", pa.float64())]))
    table.upsert([{"id": 2, "name": "after", "score": 2, "added": 0.5}])


def consume_half(table: Table) -> None:
    """Creates a consumer that has committed some of the changes."""
    with (
        table.changes(StartFrom.EARLIEST, StopAt.LATEST, consumer_id="billing").with_chunk(rows=100).stream() as stream
    ):
        next(stream)
        stream.commit()


def write_transactions(client: Client, plain: Table) -> None:
    """Commits a transaction over two tables, and leaves another one open."""
    totals = client.table("fixture.totals")
    with client.transaction(id="job:1", ttl=SEVEN_DAYS) as committed:
        committed.upsert(plain, [{"id": 2000, "name": "of a transaction", "score": 1}])
        committed.upsert(totals, [{"id": 0, "name": "third", "score": 5}])
    opened = client.transaction(id="open:1", ttl=SEVEN_DAYS)
    opened.upsert(plain, [{"id": 3000, "name": "never committed", "score": 1}])


def read_everything(client: Client) -> Record:
    """Reads all tables and everything else in the directory."""
    record = Record()
    for table in client.tables():
        name = table.name.removeprefix("fixture.")
        record.rows[name] = table.scan().ordered().to_arrow()
        record.facts[name] = {
            "schema": str(table.schema),
            "primary_key": table.primary_key,
            "buckets": table.buckets,
            "options": table.options,
            "indexes": [list(index) for index in table.indexes],
            "count": table.count(),
        }
        if table.options.get("changelog") != "none":
            record.rows[f"{name}.changes"] = in_order(table.changes(StartFrom.EARLIEST, StopAt.LATEST))
    read_what_is_left(client, record)
    return record


def read_what_is_left(client: Client, record: Record) -> None:
    """Reads what outlives its client: a snapshot, a consumer, transactions, a lock."""
    plain = client.table("fixture.plain")
    (snapshot,) = client.snapshots()
    record.rows["plain.snapshot"] = plain.scan().ordered().as_of(snapshot).to_arrow()
    record.rows["indexed.by_score"] = client.table("fixture.indexed").top_n(10, "score")
    (consumer,) = plain.consumers()
    record.facts["consumer"] = {
        "id": consumer.id,
        "phase": str(consumer.phase),
        "log_offsets": {str(bucket): offset for bucket, offset in consumer.log_offsets.items()},
        "lag": consumer.lag,
    }
    record.facts["snapshot"] = {"id": snapshot.id, "rows": snapshot.rows, "ttl": snapshot.ttl}
    record.facts["open_transactions"] = [each.id for each in client.transactions()]
    record.facts["locks"] = [[lock.table, lock.columns, lock.owner] for lock in client.column_locks()]


def in_order(changes: Scan) -> pa.Table:
    """Returns changes ordered by bucket and offset."""
    return changes.to_arrow().combine_chunks()


def resume_token_of(client: Client) -> bytes:
    """Returns the token after the first rows of a scan of the snapshot, from which a later version must resume."""
    (snapshot,) = client.snapshots()
    with client.table("fixture.plain").scan().as_of(snapshot).with_chunk(rows=50).stream() as stream:
        next(stream)
        token = stream.resume_token
    assert token is not None
    return token


def check(record: Record) -> None:
    """Compares what was read with what was written, so that no wrong fixture is kept."""
    plain: dict[int, tuple[str, int | None]] = {n: (f"player {n}", n * n) for n in range(200)}
    plain |= {n: (f"renamed {n}", None) for n in range(0, 200, 7)}
    before = {n: row for n, row in plain.items() if n % 10}
    after = {n: row for n, row in before.items() if n not in (3, 4)}
    after |= {1000: ("of a named writer", None), 2000: ("of a transaction", 1)}
    assert players(record.rows["plain.snapshot"]) == before
    assert players(record.rows["plain"]) == after
    assert players(record.rows["first"]) == {n: ("first", 10 * n) for n in range(5)}
    assert players(record.rows["versioned"]) == {
        n: max(("first", 10 * n), ("second", 20 - n), key=score) for n in range(5)
    }
    assert players(record.rows["totals"])[0] == ("first+second+third", 25)
    assert players(record.rows["based"])[7] == ("changed since", None)
    assert record.rows["altered"].column("added").to_pylist() == [None, 0.5]
    assert record.rows["types_none"].num_rows == record.rows["types_zstd"].num_rows == 3
    assert record.facts["consumer"]["lag"] > 0
    assert record.facts["open_transactions"] == ["open:1"]


def score(row: tuple[str, int]) -> int:
    """Returns the score of a player."""
    return row[1]


def players(rows: pa.Table) -> dict[int, tuple[str, int | None]]:
    """Returns rows of `player_schema` for some keys."""
    return {row["id"]: (row["name"], row["score"]) for row in rows.to_pylist()}


def packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Filters files for packing: removes the owner, and leaves out RocksDB's LOG files, which nothing reads."""
    if Path(member.name).name.startswith("LOG"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    """Packs the fixture of the installed version."""
    target = FIXTURES / version("scankv") / "data.tar.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scankv-fixture-") as name:
        directory = Path(name)
        make_data(directory)
        with tarfile.open(target, "w:gz", compresslevel=9) as archive:
            for part in ("data", "record"):
                archive.add(directory / part, part, filter=packed)
    print(f"{target.relative_to(FIXTURES.parents[1])}: {target.stat().st_size:,} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
