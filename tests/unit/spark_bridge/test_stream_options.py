"""Options of a streaming read: the text that Spark passes, and options that are only for batch reads."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.changes.log_positions import StartFrom, StopAt
from scankv.model.errors import UsageError
from spark_bridge.options import ReadOptions
from spark_bridge.stream_options import StreamOptions


def parse(**options: str) -> StreamOptions:
    """Parses options as Spark passes them: names in lower case, values as text."""
    return StreamOptions.parse(CaseInsensitiveDict({"path": "game.scores", **options}))


def test_every_option_is_read_in_every_spelling() -> None:
    found = parse(
        rowKinds="TRUE",
        start="latest",
        maxRowsPerTrigger="10",
        max_bytes_per_trigger="20",
        consumerId="job",
        snapshot_ttl="30",
        columns="a",
        rowsPerSplit="5",
    )
    assert found == StreamOptions(
        read=ReadOptions(table="game.scores", columns=("a",), rows_per_split=5, snapshot_ttl=30.0),
        row_kinds=True,
        start=StartFrom.LATEST,
        max_rows=10,
        max_bytes=20,
        consumer_id="job",
        snapshot_ttl=30.0,
    )


def test_a_query_begins_with_the_whole_table_and_its_snapshot_lives_a_day_unless_something_else_is_said() -> None:
    found = parse()
    assert (found.start, found.snapshot_ttl, found.row_kinds) == (StartFrom.FULL, 86_400, False)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("FULL", StartFrom.FULL),
        ("earliest", StartFrom.EARLIEST),
        ("last:5", StartFrom.last(5)),
        ("2026-01-31T12:00:00Z", StartFrom.timestamp(dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC))),
        ('{"0": 17, "1": 3}', StartFrom.offsets({0: 17, 1: 3})),
        (LogOffsets.of({0: 17, 1: 3}, "a").to_json(), StartFrom.offsets(LogOffsets.of({0: 17, 1: 3}, "a"))),
    ],
)
def test_every_form_of_a_start_is_read(text: str, start: StartFrom) -> None:
    assert parse(start=text).start == start


def test_every_form_of_a_stop_is_read() -> None:
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert parse(stop="2026-01-31T12:00:00+00:00").stop == StopAt.timestamp(noon)
    assert parse(stop='{"0": 17}').stop == StopAt.offsets({0: 17})
    known = LogOffsets.of({0: 17}, "a")
    assert parse(stop=known.to_json()).stop == StopAt.offsets(known)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": "latest"}, "option stop must be a time.*Trigger.AvailableNow"),
        ({"stop": '{"0": -1}'}, "option stop must be a time"),
        ({"start": "yesterday"}, "option start must be full, lake, earliest, latest, last:<number>, a time"),
        ({"start": "lake"}, "option lake must be where the table is published"),
        ({"start": "full", "lake": "/a"}, "option lake must be where the table is published"),
        ({"lake": "/a"}, "option lake must be where the table is published"),
        ({"start": "lake", "lake": "a"}, "option lake must be a complete path or a URI"),
        ({"start": "2026-01-31T12:00:00"}, "option start must be full"),
        ({"start": "last:0"}, "option start must be full"),
        ({"start": '{"0": "x"}'}, "option start must be full"),
        ({"start": '{"0": 1'}, "option start must be full"),
        ({"start": '{"log_offsets": {"0": 1}}'}, "option start must be full"),
        ({"row_kinds": "yes"}, "option row_kinds must be true or false, not 'yes'"),
        ({"max_rows_per_trigger": "1"}, "option max_rows_per_trigger must be a whole number between 2 and"),
        ({"max_bytes_per_trigger": "x"}, "option max_bytes_per_trigger must be a whole number, not 'x'"),
        ({"consumer_id": "a b"}, "option consumer_id is not valid"),
        ({"row_kind": "true"}, 'there is no option "row_kind"; did you mean "row_kinds"?'),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        parse(**options)


@pytest.mark.parametrize("name", ["limit", "key_prefix", "key_start", "key_end", "snapshot"])
def test_what_is_of_one_instant_is_not_for_a_stream(name: str) -> None:
    with pytest.raises(UsageError, match=f"option {name} cannot be used with readStream"):
        parse(**{name: "1"}).check_stream()


@pytest.mark.parametrize(
    "name", ["row_kinds", "start", "stop", "max_rows_per_trigger", "max_bytes_per_trigger", "consumer_id", "untracked"]
)
def test_what_is_of_a_stream_is_not_for_a_read_as_of_one_instant(name: str) -> None:
    with pytest.raises(UsageError, match=f"option {name} is an option of readStream only"):
        ReadOptions.parse(CaseInsensitiveDict({"path": "game.scores", name: "1"}))
