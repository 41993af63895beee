"""The options of a streaming read: some of those of a read of the table, and its own."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.changes.log_positions import StartFrom, StopAt, Untracked
from scankv.model.errors import InvalidRequest, UsageError
from scankv.model.names import check_consumer_id
from spark_bridge.options import (
    STREAM_NAMES,
    ReadOptions,
    check_number,
    normalize_names,
    option_error,
    parse_bool,
    parse_whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SNAPSHOT_TTL: Final = 86_400.0
"""Seconds that the snapshot of the initial rows lives while the query does not run."""

_STARTS: Final = {"full": StartFrom.FULL, "earliest": StartFrom.EARLIEST, "latest": StartFrom.LATEST}
_LAKE: Final = "lake"
_START_FORMS: Final = (
    "must be full, lake, earliest, latest, last:<number>, a time with its zone such as 2026-01-31T12:00:00Z, or the "
    'offset of each bucket as JSON, such as {"0": 17}'
)
_STOP_FORMS: Final = "must be a time with its zone such as 2026-01-31T12:00:00Z, or the offset of each bucket as JSON"
_STOP_HINT: Final = "to end a query with the data that exists when it starts, use Trigger.AvailableNow"
# Options that select one instant, or a key range, which the changelog is not ordered by.
_NOT_OF_CHANGES: Final = {
    "limit": "a stream has no last row",
    "key_prefix": 'use option("where", ...) to select rows',
    "key_start": 'use option("where", ...) to select rows',
    "key_end": 'use option("where", ...) to select rows',
    "snapshot": "with start=full, the query pins its own snapshot",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of a streaming read. Immutable, picklable.

    Attributes:
        read: The table, the server, columns, predicate, and how many tasks read at once.
        row_kinds: Whether to deliver changes, with four columns about the change before those of the table.
        start: Where a query without a checkpoint begins.
        stop: Changes at or after this position are not read. None: the query has no end.
        max_rows: The most changes of one micro-batch; of initial rows, about so many. None: all changes that exist; of
            initial rows, what a few tasks read.
        max_bytes: The most bytes of Arrow data of one micro-batch. At least one chunk of changes or one part of the
            table is read, even if that is more. None: no limit.
        consumer_id: The consumer that holds the changes. None: one is created for the query.
        snapshot_ttl: Seconds that the snapshot of the initial rows lives while the query does not run.
        untracked: What the query does where rows were written without tracking of changes.
        skips_deleted_ranges: Whether the query continues where the rows of a key range were deleted at once. It does
            not learn which rows these were. If not, it fails there.
    """

    read: ReadOptions
    row_kinds: bool = False
    start: StartFrom = field(default_factory=lambda: StartFrom.FULL)
    stop: StopAt | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    consumer_id: str | None = None
    snapshot_ttl: float = SNAPSHOT_TTL
    untracked: Untracked = Untracked.FAIL
    skips_deleted_ranges: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError, naming the option, if a value is out of range."""
        # At least 2, since the row before an update and the row after it stay together.
        check_number("max_rows_per_trigger", self.max_rows, 2, 2**63 - 1)
        check_number("max_bytes_per_trigger", self.max_bytes, 1, 2**63 - 1)
        if self.skips_deleted_ranges and self.untracked is not Untracked.RESCAN:
            raise option_error(
                "deleted_ranges",
                'can be skip only with option("untracked", "rescan"), because the rows that a deleted range has now '
                "are read again",
            )
        if self.consumer_id is not None:
            try:
                check_consumer_id(self.consumer_id)
            except InvalidRequest as error:
                raise option_error("consumer_id", f"is not valid: {error.message}") from None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Parses the options of `spark.readStream`. Case and `_` in option names do not matter.

        Raises:
            UsageError: An option is unknown, missing, or given twice with different values, or its value is invalid.
        """
        return cls.parse_stream(normalize_names(options))

    @classmethod
    def parse_stream(cls, texts: dict[str, str]) -> StreamOptions:
        """Parses the options under their normalized names. Removes some of them from `texts`."""
        own: dict[str, str] = {name: texts.pop(name) for name in STREAM_NAMES if name in texts}
        values: dict[str, Any] = {}
        if "row_kinds" in own:
            values["row_kinds"] = parse_bool("row_kinds", own["row_kinds"])
        if "start" in own:
            values["start"] = _parse_start(own["start"], own.get("lake"))
        elif "lake" in own:
            _parse_start("full", own["lake"])
        if "stop" in own:
            values["stop"] = _parse_stop(own["stop"])
        for name in ("max_rows", "max_bytes"):
            if f"{name}_per_trigger" in own:
                values[name] = parse_whole_number(f"{name}_per_trigger", own[f"{name}_per_trigger"])
        if "consumer_id" in own:
            values["consumer_id"] = own["consumer_id"]
        if "untracked" in own:
            values["untracked"] = _parse_untracked(own["untracked"])
        if "deleted_ranges" in own:
            values["skips_deleted_ranges"] = _parse_deleted_ranges(own["deleted_ranges"])
        ttl_is_given = "snapshot_ttl" in texts
        read = ReadOptions.parse_texts(texts)
        if ttl_is_given:
            values["snapshot_ttl"] = read.snapshot_ttl
        return cls(read=read, **values)

    def check_stream(self) -> None:
        """Raises UsageError if an option makes sense only for reading the table as of one instant."""
        for name, why in _NOT_OF_CHANGES.items():
            if getattr(self.read, name) is not None:
                raise option_error(name, f"cannot be used with readStream: {why}")


def _parse_start(text: str, lake: str | None) -> StartFrom:
    if (text.lower() == _LAKE) != bool(lake):
        raise option_error(
            _LAKE, 'must be where the table is published, and is for option("start", "lake") only: set both, or neither'
        )
    if lake and "://" not in lake and not PurePath(lake).is_absolute():
        raise option_error(
            _LAKE,
            f"must be a complete path or a URI, because Spark's processes work in other directories, not {lake!r}",
        )
    if lake:
        return StartFrom.lake(lake)
    if text.lower() in _STARTS:
        return _STARTS[text.lower()]
    try:
        if last := re.fullmatch(r"last:(\d+)", text.strip()):
            return StartFrom.last(int(last[1]))
        if text.lstrip().startswith("{"):
            return StartFrom.offsets(_parse_offsets(text))
        return StartFrom.timestamp(dt.datetime.fromisoformat(text))
    except (ValueError, UsageError):
        raise option_error("start", f"{_START_FORMS}, not {text!r:.80}") from None


def _parse_untracked(text: str) -> Untracked:
    try:
        return Untracked(text.strip().lower())
    except ValueError:
        raise option_error("untracked", f"must be fail or rescan, not {text!r:.80}") from None


def _parse_deleted_ranges(text: str) -> bool:
    if (choice := text.strip().lower()) not in ("fail", "skip"):
        raise option_error("deleted_ranges", f"must be fail or skip, not {text!r:.80}")
    return choice == "skip"


def _parse_stop(text: str) -> StopAt:
    try:
        if text.lstrip().startswith("{"):
            return StopAt.offsets(_parse_offsets(text))
        return StopAt.timestamp(dt.datetime.fromisoformat(text))
    except (ValueError, UsageError):
        raise option_error("stop", f"{_STOP_FORMS}, not {text!r:.80}: {_STOP_HINT}") from None


def _parse_offsets(text: str) -> LogOffsets:
    values = json.loads(text)
    if "log_offsets" in values:
        return LogOffsets.from_json(values)
    return LogOffsets({int(bucket): offset for bucket, offset in values.items()})
