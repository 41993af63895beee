"""Replays a stream of changes into a dictionary, and fails for a change that does not fit the previous ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

Row: TypeAlias = dict[str, Any]
"""The values of a row that are not null, so that columns that were added later make no difference."""

_META = ("_change_type", "_log_offset", "_bucket", "_commit_timestamp")


class ReplayedTable:
    """The state of a table as known to a reader of its changes.

    Attributes:
        rows: The rows of each bucket by their key.
        places: The number of changes of each bucket before the next one, from the offsets of the changes.
        whole: Whether all rows at the start are known, so that every change must fit a known row.
        selective: Whether changes may be missing, because of a predicate or because initial rows contain them.
        before_images: Whether changes contain the old row. Otherwise a written row is `+U`, and a deleted one its key.
        rows_seen: The number of changes and rows.
    """

    def __init__(
        self,
        start: Mapping[int, Mapping[Any, Row]] | None = None,
        *,
        key: str = "k",
        key_columns: Sequence[str] = (),
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
        self._key_columns = key_columns or (key,)
        self._begun: set[int] = set()
        self._micros: dict[int, Any] = {}

    @property
    def table(self) -> dict[Any, Row]:
        """The rows of all buckets."""
        return {key: row for rows in self.rows.values() for key, row in rows.items()}

    def play(self, batch: pa.RecordBatch) -> None:
        """Applies the next changes, which belong to one bucket."""
        updating: Any = None
        for given in batch.to_pylist():
            kind, offset, bucket, time = (given[name] for name in _META)
            row = {name: value for name, value in given.items() if name not in _META and value is not None}
            rows, key = self.rows.setdefault(bucket, {}), row[self._key]
            if offset is None:
                assert (kind, time) == ("+I", None), "an initial row that is not +I"
            else:
                self._check_place(bucket, offset, time)
                if not self.before_images:
                    assert kind in ("+U", "-D")
                    if kind == "+U":
                        rows[key] = row
                    else:
                        is_key = row.keys() == set(self._key_columns) and row[self._key] == key
                        assert is_key, f"-D of {key} that is more than its key"
                        rows.pop(key, None)
                    self.rows_seen += 1
                    continue
            # A stream that starts in the middle may start between the two halves of an update.
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
        assert time >= self._micros.get(bucket, time), "a commit time before the previous one"
        self._micros[bucket] = time
