"""The options of a streaming read: those of a read of the table that make sense for it, and some of its own."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from scankv.model.changes.log_offsets import LogOffsets
from scankv.model.changes.log_positions import StartFrom, StopAt
from scankv.model.errors import InvalidRequest, UsageError
from scankv.model.names import check_consumer_id
from spark_bridge.options import STREAM_NAMES, ReadOptions, check_number, named, whole_number, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping

SNAPSHOT_TTL: Final = 86_400.0
"""Seconds that the snapshot of a start from the whole table lives while the query does not run."""

_STARTS: Final = {"full": StartFrom.FULL, "earliest": StartFrom.EARLIEST, "latest": StartFrom.LATEST}
_START_FORMS: Final = (
    "is full, earliest, latest, last:<number>, a time with its zone such as 2026-01-31T12:00:00Z, or the offset of "
    'each bucket as JSON, such as {"0": 17}'
)
_STOP_FORMS: Final = (
    "is a time with its zone such as 2026-01-31T12:00:00Z, or the offset of each bucket as JSON; Trigger.AvailableNow "
    "ends a query with what there is when it is started"
)
# Options that ask for one instant, or for a range that a changelog does not have.
_NOT_OF_CHANGES: Final = {
    "limit": "a query that goes on has no last row",
    "key_prefix": 'say it with option("where", ...)',
    "key_start": 'say it with option("where", ...)',
    "key_end": 'say it with option("where", ...)',
    "snapshot": "the query pins its own, with option start=full",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What a streaming read of a table was told. Immutable, picklable.

    Attributes:
        read: The table, the server, columns, predicate, and how many tasks read at once.
        row_kinds: Whether changes come with what happened, in four columns before those of the table.
        start: Where a query without a checkpoint begins.
        stop: Behind which changes it reads none. None: it goes on.
        max_rows: The most changes of one micro-batch. None: as many as there are, and of the rows that a start from the
            whole table begins with a few tasks at a time.
        max_bytes: The most bytes of Arrow data of one micro-batch; a chunk of changes or a part of the table may go
            beyond it. None: no bound.
        consumer_id: The consumer in whose name the changelog is kept. None: one is made for the query.
        snapshot_ttl: Seconds that the snapshot of a start from the whole table lives while the query does not run.
    """

    read: ReadOptions
    row_kinds: bool = False
    start: StartFrom = field(default_factory=lambda: StartFrom.FULL)
    stop: StopAt | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    consumer_id: str | None = None
    snapshot_ttl: float = SNAPSHOT_TTL

    def __post_init__(self) -> None:
        """Raises UsageError naming the option that is out of its range."""
        # Two: a row before a change and the row after it come together.
        check_number("max_rows_per_trigger", self.max_rows, 2, 2**63 - 1)
        check_number("max_bytes_per_trigger", self.max_bytes, 1, 2**63 - 1)
        if self.consumer_id is not None:
            try:
                check_consumer_id(self.consumer_id)
            except InvalidRequest as error:
                raise wrong("consumer_id", f"is refused: {error.message}") from None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Reads the options of `spark.readStream`; the case of their names and `_` in them do not matter.

        Raises:
            UsageError: An option is unknown, given twice, missing, or its value cannot be read.
        """
        return cls.of_stream(named(options))

    @classmethod
    def of_stream(cls, texts: dict[str, str]) -> StreamOptions:
        """As `parse`, of options by their own names, some of which it takes out of the dictionary."""
        own: dict[str, str] = {name: texts.pop(name) for name in STREAM_NAMES if name in texts}
        values: dict[str, Any] = {}
        if "row_kinds" in own:
            values["row_kinds"] = _is_true("row_kinds", own["row_kinds"])
        if "start" in own:
            values["start"] = _start(own["start"])
        if "stop" in own:
            values["stop"] = _stop(own["stop"])
        for name in ("max_rows", "max_bytes"):
            if f"{name}_per_trigger" in own:
                values[name] = whole_number(f"{name}_per_trigger", own[f"{name}_per_trigger"])
        if "consumer_id" in own:
            values["consumer_id"] = own["consumer_id"]
        ttl_is_given = "snapshot_ttl" in texts
        read = ReadOptions.of_texts(texts)
        if ttl_is_given:
            values["snapshot_ttl"] = read.snapshot_ttl
        return cls(read=read, **values)

    def check_stream(self) -> None:
        """Raises UsageError when an option is only for reading the table as of one instant."""
        for name, why in _NOT_OF_CHANGES.items():
            if getattr(self.read, name) is not None:
                raise wrong(name, f"is not for readStream: {why}")


def _is_true(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise wrong(option, f"is true or false, not {text!r}")
    return text.lower() == "true"


def _start(text: str) -> StartFrom:
    if text.lower() in _STARTS:
        return _STARTS[text.lower()]
    try:
        if last := re.fullmatch(r"last:(\d+)", text.strip()):
            return StartFrom.last(int(last[1]))
        if text.lstrip().startswith("{"):
            return StartFrom.offsets(_offsets(text))
        return StartFrom.timestamp(dt.datetime.fromisoformat(text))
    except (ValueError, UsageError):
        raise wrong("start", f"{_START_FORMS}, not {text!r:.80}") from None


def _stop(text: str) -> StopAt:
    try:
        if text.lstrip().startswith("{"):
            return StopAt.offsets(_offsets(text))
        return StopAt.timestamp(dt.datetime.fromisoformat(text))
    except (ValueError, UsageError):
        raise wrong("stop", f"{_STOP_FORMS}, not {text!r:.80}") from None


def _offsets(text: str) -> LogOffsets:
    values = json.loads(text)
    if "log_offsets" in values:
        return LogOffsets.from_json(values)
    return LogOffsets({int(bucket): offset for bucket, offset in values.items()})
