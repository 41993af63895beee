"""Options of a read: every spelling is accepted, and errors name the option."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from scankv.model.errors import InvalidKey, ScanKvError, UsageError
from spark_bridge.options import ReadOptions, _parse_key

KEY = pa.schema([("day", pa.date32()), ("number", pa.int32()), ("name", pa.string())])


def parse(**options: str) -> ReadOptions:
    """Parses options as Spark passes them: names in lower case, values as text."""
    return ReadOptions.parse(CaseInsensitiveDict(options))


def test_every_option_is_read_in_every_spelling() -> None:
    plain = parse(
        path="game.scores",
        url="host:1",
        columns="a, b",
        where="a > 1",
        key_start="2",
        key_end="3",
        splits="4",
        rows_per_split="5",
        max_partitions="6",
        snapshot="id",
        snapshot_ttl="7.5",
        pushdown="false",
    )
    camel = parse(
        table="game.scores",
        URL="host:1",
        Columns='["a", "b"]',
        WHERE="a > 1",
        keyStart="2",
        KeyEnd="3",
        splits="4",
        rowsPerSplit="5",
        MAX_PARTITIONS="6",
        snapshot="id",
        snapshotTtl="7.5",
        pushDown="False",
    )
    assert plain == camel
    assert plain == ReadOptions(
        table="game.scores",
        url="host:1",
        columns=("a", "b"),
        where="a > 1",
        key_start="2",
        key_end="3",
        splits=4,
        rows_per_split=5,
        max_partitions=6,
        snapshot="id",
        snapshot_ttl=7.5,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splitz": "3"}, 'no option "splitz"; did you mean "splits"'),
        ({"secret_file": "x"}, 'no option "secret_file"'),
        ({"token": "x"}, 'no option "token": Spark shows and stores options'),
        ({"splits": "many"}, "option splits must be a whole number, not 'many'"),
        ({"splits": "0"}, "option splits must be a whole number between 1 and 1,024, not 0"),
        ({"splits": "2", "limit": "5"}, "option splits cannot be combined with limit"),
        ({"limit": "-1"}, "option limit must be a whole number between 0"),
        ({"rows_per_split": "0"}, "option rows_per_split"),
        ({"max_partitions": "2000"}, "option max_partitions"),
        ({"maxPartitions": "2", "max_partitions": "3"}, "option max_partitions is given twice"),
        ({"path": "a.b"}, "option table is given twice"),
        ({"snapshot_ttl": "soon"}, "option snapshot_ttl must be a number of seconds"),
        ({"snapshot_ttl": "nan"}, "option snapshot_ttl"),
        ({"snapshot_ttl": "0.5"}, "option snapshot_ttl must be between 1 and 604,800 seconds"),
        ({"columns": ""}, "option columns must name at least one column"),
        ({"columns": '["a", 3]'}, "option columns must be names separated by commas"),
        ({"columns": '["a"'}, "option columns must be a JSON list if it begins with"),
        ({"key_prefix": "a", "key_end": "b"}, "option key_prefix cannot be combined with key_start"),
        ({"pushdown": "yes"}, "option pushdown must be true or false"),
        ({"pushdown": "true"}, 'option pushdown must be false: PySpark 4.3.*option."where"'),
        ({"timestampAsOf": "2026-01-01"}, 'no option "timestampasof": load.. .* as it is now; .* as_of=.* pin it'),
        ({"isolation": "read_latest"}, "Spark always reads committed rows and changes"),
        ({"versionAsOf": "3"}, r"earlier version of a published table, use scankv.spark.table\(.*as_of="),
        ({"startingOffsets": "earliest"}, "use option start of readStream"),
        ({"readChangeFeed": "true"}, r'readStream with option."row_kinds", "true"'),
        ({"read.stream.maxRowsPerTrigger": "3"}, "option max_rows_per_trigger"),
        ({"kafka.bootstrap.servers": "x:1"}, "use option url for the server"),
        ({"dbtable": "game.scores"}, "option table or load"),
        ({"numPartitions": "3"}, "option splits"),
        ({"start-snapshot-id": "3"}, r'readStream with option."row_kinds", "true"'),
        ({"scan.snapshot-id": "3"}, "reads the table as it is now"),
        ({"partitionOverwriteMode": "dynamic"}, r'mode."overwrite". replaces all rows'),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(table="game.scores", **options)


def test_a_read_without_a_table_says_how_sql_keeps_options() -> None:
    with pytest.raises(UsageError, match=r"option table is missing.*In SQL, use CREATE TABLE.*without columns"):
        parse(url="host:1")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2024-02-29", ["2024-02-29"]),
        ('["2024-02-29", 7]', ["2024-02-29", 7]),
        (' ["2024-02-29", "7", "[x"]', ["2024-02-29", 7, "[x"]),
    ],
)
def test_a_key_is_read_as_the_types_of_its_columns(text: str, values: list[Any]) -> None:
    read = _parse_key("key_start", text, KEY)
    assert [str(each) if place != 1 else each for place, each in enumerate(read)] == values


@pytest.mark.parametrize("text", ["", "today", '["2024-02-29", "x"]', "[]", "[null]", "[1, 2, 3, 4]", "[[1]]", "[1"])
def test_a_key_that_cannot_be_one_is_refused_by_the_options_name_without_its_value(text: str) -> None:
    with pytest.raises(ScanKvError, match="option key_start") as caught:
        _parse_key("key_start", text, KEY)
    assert isinstance(caught.value, UsageError | InvalidKey)
    assert "today" not in caught.value.message


def test_options_say_nothing_of_keys_and_predicates_in_their_repr() -> None:
    assert "secret" not in repr(parse(table="a.b", where="name = 'secret'", key_prefix="secret"))
