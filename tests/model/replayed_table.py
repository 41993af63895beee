"""A stream of changes played into a dictionary, which refuses every change that cannot follow those before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

Row: TypeAlias = dict[str, Any]
"""The values of a row that are not null, so that columns which were added later make no difference."""

_META = ("_change_type", "_log_offset", "_bucket", "_commit_timestamp")


class ReplayedTable:
    """What a reader of changes knows of a table.

    Attributes:
        rows: The rows of each bucket by their key.
        places: How many changes each bucket had before the next one, as the offsets of the changes said.
        whole: Whether all rows are known that there were at the start, so that no change may come out of the blue.
        selective: Whether changes may be left out: by a predicate, or because rows came that show them.
        before_images: Whether changes tell the row before. Otherwise a row is `+U`, and a deleted one its key.
        rows_seen: How many changes and rows there were.
    """

    def __init__(
        self,
        start: Mapping[int, Mapping[Any, Row]] | None = None,
        *,
        key: str = "k",
        selective: bool = False,
        before_images: bool = True,
    ) -> None:
        self.rows: dict[int, dict[Any, Row]] = {b: dict(rows) for b, rows in (start or {}).items()}
        self.places: dict[int, int] = {}
        self.whole = start is not None
        self.selective = selective
        self.before_images = before_images
        self.rows_seen = 0
        self._key = key
        self._begun: set[int] = set()
        self._micros: dict[int, Any] = {}

    @property
    def table(self) -> dict[Any, Row]:
        """The rows of all buckets."""
        return {key: row for rows in self.rows.values() for key, row in rows.items()}

    def play(self, batch: pa.RecordBatch) -> None:
        """Takes the next changes, which are of one bucket."""
        updating: Any = None
        for given in batch.to_pylist():
            kind, offset, bucket, time = (given[name] for name in _META)
            row = {name: value for name, value in given.items() if name not in _META and value is not None}
            rows, key = self.rows.setdefault(bucket, {}), row[self._key]
            if offset is None:
                assert (kind, time) == ("+I", None), "a row of the table that is no +I"
            else:
                self._check_place(bucket, offset, time)
                if not self.before_images:
                    assert kind in ("+U", "-D")
                    if kind == "+U":
                        rows[key] = row
                    else:
                        assert row == {self._key: key}, f"-D of {key} that is more than its key"
                        rows.pop(key, None)
                    self.rows_seen += 1
                    continue
            # Whoever starts somewhere in the middle may start between the two halves of an update.
            is_half = kind == "+U" and updating is None and not self.whole and bucket not in self._begun
            self._begun.add(bucket)
            assert (kind == "+U") == (updating is not None) or is_half, f"{kind} of {key} behind {updating}"
            if kind == "+I":
                assert key not in rows, f"+I of {key}, which is there, at {offset}"
            elif kind == "+U":
                assert key == updating or is_half, f"+U of {key} behind -U of {updating}"
            else:
                known = rows.pop(key, None)
                assert known == row or (known is None and not self.whole), f"{kind} of {key} at {offset}: not {known}"
            if kind in ("+I", "+U"):
                rows[key] = row
            updating = key if kind == "-U" else None
            self.rows_seen += 1
        assert updating is None, f"-U of {updating} without its +U"

    def _check_place(self, bucket: int, offset: int, time: Any) -> None:
        place = self.places.get(bucket)
        if place is not None:
            gap = count_of(offset) - place
            assert gap == 0 or (self.selective and gap > 0), f"bucket {bucket}: change {count_of(offset)}, not {place}"
        self.places[bucket] = count_of(offset) + 1
        assert time >= self._micros.get(bucket, time), "a commit before the one before"
        self._micros[bucket] = time
