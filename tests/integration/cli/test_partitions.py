"""`scankv partitions` lists, creates and drops partitions, and says what is wrong with bad input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


def test_partitions_are_created_listed_and_dropped(scankv: CommandLine, table: str) -> None:
    scankv("create", table, "--schema", "day int32, id int64", "--key", "day,id", "--partition-by", "day")
    scankv("load", table, "-", "--format", "csv", stdin="day,id\n1,1\n1,2\n2,1\n")
    scankv("partitions", "create", table, "day=3")
    listed = scankv("partitions", "list", table, "--json").json
    assert [each["rows"] for each in listed] == [2, 1, 0]
    scankv("partitions", "drop", table, "day=1", "--yes")
    assert scankv("count", table).text == "1\n"
    assert [each["rows"] for each in scankv("partitions", "list", table, "--json").json] == [1, 0]


def test_partitions_of_dates_that_python_does_not_have_are_created_listed_and_dropped(
    scankv: CommandLine, table: str
) -> None:
    scankv("create", table, "--schema", "day date32, id int64", "--key", "day,id", "--partition-by", "day")
    scankv("put", table, "day=+10000-01-01", "id=1")
    scankv("partitions", "create", table, "day=-0001-12-31")
    listed = scankv("partitions", "list", table, "--json").json
    assert [each["values"]["day"] for each in listed] == ["-0001-12-31", "+10000-01-01"]
    assert "+10000-01-01" in scankv("partitions", "list", table).text
    assert scankv("count", table, "--where", "day = DATE '+10000-01-01'").text == "1\n"
    scankv("partitions", "drop", table, "day=+10000-01-01", "--yes")
    assert scankv("count", table).text == "0\n"


def test_bad_input_changes_nothing(scankv: CommandLine, table: str) -> None:
    scankv("create", table, "--schema", "day int32, id int64", "--key", "day,id", "--partition-by", "day")
    scankv("partitions", "create", table, "day=1")
    assert "--yes" in scankv.fails("partitions", "drop", table, "day=1")
    assert "give day=VALUE" in scankv.fails("partitions", "drop", table, "hour=1", "--yes")
    assert "day" in scankv.fails("partitions", "create", table, "day=monday")
    assert len(scankv("partitions", "list", table, "--json").json) == 1
