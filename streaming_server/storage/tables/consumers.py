"""The stored consumers of a table, with the position of each.

<table>/consumers/<id>.json    one file for each consumer; dropped with its table
"""

from __future__ import annotations

import base64
import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import DataLoss, InvalidRequest
from scankv.model.names import check_consumer_id
from streaming_server.storage.files.checked_json import read_checked_json, sync_directory, write_checked_json
from streaming_server.storage.files.disk_space import translate_disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SUFFIX: Final = ".json"

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRecord:
    """One consumer, as it is stored.

    Attributes:
        consumer_id: The id of the consumer, unique within its table.
        fence: The number of its last stream. Each stream that takes the consumer over has a greater one.
        token: The consumer's position, as a resume token of its table.
        committed_micros: The time of its last commit, in microseconds since 1970 UTC. 0: it has never committed.
        rows_position: How far its reader has read rows elsewhere, as the reader says it. Empty: it does not do that.
        moved_micros: When its position was set last, by its first stream, a commit or a reset, in microseconds since
            1970 UTC. 0: unknown, because an earlier version has stored the record.
        principal: The principal that it belongs to. Empty: it belongs to nobody, and whoever commits does not become
            its owner. None: it was made without a principal, and no stream of a principal has taken it over.
    """

    consumer_id: str
    fence: int
    token: bytes
    committed_micros: int
    rows_position: bytes = b""
    moved_micros: int = 0
    principal: str | None = None

    def is_later_than(self, micros: int) -> bool:
        """Whether its position was set after an instant, as far as that is known."""
        return (self.moved_micros or self.committed_micros) > micros

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form."""
        stored = {**asdict(self), "token": self.token.hex(), "rows_position": self.rows_position.hex()}
        if not self.rows_position:  # which earlier releases do not know
            del stored["rows_position"]
        if not self.moved_micros:
            del stored["moved_micros"]
        if self.principal is None:
            del stored["principal"]
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ConsumerRecord:
        """Reads the result of `to_json`."""
        texts = {"rows_position": "", **stored}
        return cls(**{**texts, **{name: bytes.fromhex(texts[name]) for name in ("token", "rows_position")}})


class ConsumerDirectory:
    """The files of the consumers of one table. Threads may use different files concurrently, but not the same one.

    Args:
        table: The directory of the table.
    """

    def __init__(self, table: Path) -> None:
        self._path = table / "consumers"
        self._has_durable_name = False

    def read(self) -> Iterator[tuple[str, ConsumerRecord | DataLoss]]:
        """Yields the id of each stored consumer with its record, or with the reason why the record cannot be read."""
        for file in sorted(self._path.glob(f"*{_SUFFIX}")):
            try:
                yield file.name.removesuffix(_SUFFIX), _read_record(file)
            except DataLoss as error:
                _log.error("DATA_LOSS: %s", error.message)
                yield file.name.removesuffix(_SUFFIX), error

    def write(self, record: ConsumerRecord) -> None:
        """Stores a consumer durably, in place of its earlier record.

        Raises:
            DiskFull, OSError: The write failed; the file has the old or the new record.
        """
        if not self._has_durable_name:
            # Even if the directory exists, since a crash may have come between its creation and the sync.
            with translate_disk_errors(self._path.parent):
                self._path.mkdir(exist_ok=True)
                sync_directory(self._path.parent)
            self._has_durable_name = True
        content: dict[str, Any] = {
            "fence": record.fence,
            "token": base64.b64encode(record.token).decode(),
            "committed_micros": record.committed_micros,
        }
        if record.rows_position:
            content["rows_position"] = base64.b64encode(record.rows_position).decode()
        if record.moved_micros:
            content["moved_micros"] = record.moved_micros
        if record.principal is not None:
            content["principal"] = record.principal
        write_checked_json(self._file(record.consumer_id), content)

    def assign(self, consumer_id: str, principal: str) -> None:
        """Gives a stored consumer to a principal. Otherwise like `write`. Raises DataLoss if it cannot be read."""
        self.write(replace(_read_record(self._file(consumer_id)), principal=principal))

    def remove(self, consumer_id: str) -> None:
        """Removes a consumer durably. An unknown consumer is no error."""
        if self._path.exists():
            self._file(consumer_id).unlink(missing_ok=True)
            sync_directory(self._path)

    def _file(self, consumer_id: str) -> Path:
        return self._path / f"{consumer_id}{_SUFFIX}"


def _read_record(file: Path) -> ConsumerRecord:
    content = read_checked_json(file)
    consumer_id = file.name.removesuffix(_SUFFIX)
    try:
        check_consumer_id(consumer_id)
        return ConsumerRecord(
            consumer_id=consumer_id,
            fence=int(content["fence"]),
            token=base64.b64decode(content["token"], validate=True),
            committed_micros=int(content["committed_micros"]),
            rows_position=base64.b64decode(content.get("rows_position", ""), validate=True),
            moved_micros=int(content.get("moved_micros", 0)),
            principal=content.get("principal"),
        )
    except (ValueError, TypeError, LookupError, InvalidRequest) as error:
        raise DataLoss(f"the consumer {file} cannot be read: {error}") from error
