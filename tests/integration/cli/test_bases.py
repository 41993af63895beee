"""What `describe` and `stats` show about columnar bases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.command_line import CommandLine


def bases_of(scankv: CommandLine, table: str) -> list[dict[str, Any]]:
    return [bucket["base"] for bucket in scankv("describe", table, "--json").json["stats"]]


def all_bases(scankv: CommandLine, table: str) -> dict[str, Any]:
    (found,) = [each for each in scankv("stats", "--json").json["bases"] if each["table"] == table]
    return dict(found)


@pytest.fixture
def based(scankv: CommandLine, table: str) -> str:
    """Makes a table of one bucket with three rows in its base."""
    columns = ["--schema", "player string, score int64", "--key", "player", "--buckets", "1"]
    scankv("create", table, *columns, "--set", "columnar_base=eager")
    scankv("load", table, "-", stdin="player,score\nann,31\nbob,27\ncem,\n")
    wait_until(lambda: bases_of(scankv, table)[0]["unused_reason"] is None, "a base", timeout=30)
    return table


def test_the_figures_of_a_base_are_shown_by_bucket_and_by_table(scankv: CommandLine, based: str) -> None:
    scankv("put", based, "player=dan", "score=1")
    scankv("delete", based, "ann")
    (base,) = bases_of(scankv, based)
    table = all_bases(scankv, based)
    assert (base["rows"], base["changes_since"], base["delta_rows"], base["log_offset"]) == (3, 2, 2, 3)
    assert (base["builds"], base["written_bytes"]) == (1, base["last_written_bytes"])
    assert min(base["disk_bytes"], base["delta_bytes"], base["last_build_cpu"]) > 0
    assert 0 <= base["age"] < 600
    assert (table["buckets"], table["bases"], table["unused_reasons"]) == (1, 1, [])
    shared = set(base) & set(table) - {"unused_reason", "unused_reasons", "age"}
    assert {name: table[name] for name in shared} == {name: base[name] for name in shared}
    text = scankv("describe", based).text
    line = text[text.index("columnar base of bucket") :].splitlines()[2]
    assert line.split()[:3] == ["0", "3", "3"]
    (line,) = [line for line in scankv("stats").text.splitlines() if line.startswith(f"{based} ")]
    assert line.split()[1:5] == ["1", "of", "1", "3"]


def test_a_table_says_why_it_has_no_base(scankv: CommandLine, table: str, scores: str) -> None:
    without = scores + "_off"
    scankv("create", without, "--schema", "k int64", "--key", "k", "--buckets", "2", "--set", "columnar_base=off")
    assert bases_of(scankv, without) == [None, None]
    assert "columnar base" not in scankv("describe", without).text
    small = scores + "_small"
    scankv("create", small, "--schema", "k int64", "--key", "k", "--buckets", "1")
    scankv("put", small, "k=1")
    why = "it has fewer than 100,000 rows (base_min_rows)"
    wait_until(lambda: bases_of(scankv, small)[0]["unused_reason"] == why, "a look at the bucket", timeout=30)
    assert why in scankv("describe", small).text
    # The statistics of the server leave out tables that never had a base, which most small ones are.
    assert not {small, without} & {each["table"] for each in scankv("stats", "--json").json["bases"]}
