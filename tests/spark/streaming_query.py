"""Simulates how Spark uses a stream reader: it records offsets, reads micro-batches, and commits."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_bridge import ScanKvDataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_bridge.stream_source import ScanKvStreamReader


class Query:
    """A streaming query, its checkpoint, and the content of its sink.

    Attributes:
        offsets: The checkpoint: where each micro-batch ends, as text.
        batches: The rows of each micro-batch in the sink.
    """

    def __init__(self, url: str, table: str, **options: Any) -> None:
        self._options = {"url": url, "path": table, "row_kinds": "true", **{k: str(v) for k, v in options.items()}}
        self.offsets: list[str] = []
        self.batches: list[list[dict[str, Any]]] = []
        self._schema: StructType | None = None
        self._reader: ScanKvStreamReader | None = None

    def start(self, *, available_now: bool = False) -> None:
        """Starts the query as in a new process, which knows only the checkpoint."""
        self._schema = self._schema or self._source().schema()
        self._reader = self._source().streamReader(self._schema)
        if available_now:
            self._reader.prepareForTriggerAvailableNow()

    def stop(self) -> None:
        """Stops the query."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def plan(self, *, once: bool = False) -> bool:
        """Records the end of the next micro-batch in the checkpoint. Returns False if there is nothing to read."""
        reader = self.reader
        assert not self.is_pending, "Spark reads a planned micro-batch before it plans the next one"
        start = self.offsets[-1] if self.offsets else json.dumps(reader.initialOffset())
        end = json.dumps(reader.latestOffset(json.loads(start), ReadAllAvailable() if once else self._limit()))
        if end == start:
            return False
        if self.batches:
            reader.commit(json.loads(start))
        self.offsets.append(end)
        return True

    def read(self, batch: int) -> list[dict[str, Any]]:
        """Reads a micro-batch in tasks that know only their pickled parts."""
        reader = self.reader
        start = json.loads(self.offsets[batch - 1]) if batch else reader.initialOffset()
        parts = reader.partitions(start, json.loads(self.offsets[batch]))
        assert self._schema is not None
        copy, sent = pickle.loads(pickle.dumps((self._source().streamReader(self._schema), parts)))
        return [row for part in sent for rows in copy.read(part) for row in rows.to_pylist()]

    def run_batch(self, *, once: bool = False) -> bool:
        """Runs the next micro-batch, or the planned one. Returns False if there is none."""
        if not self.is_pending and not self.plan(once=once):
            return False
        self.batches.append(self.read(len(self.batches)))
        return True

    @property
    def is_pending(self) -> bool:
        """Returns whether a micro-batch was planned and not read."""
        return len(self.offsets) > len(self.batches)

    def run(self) -> None:
        """Runs micro-batches until there is nothing to read."""
        while self.run_batch():
            pass

    def state(self) -> dict[Any, dict[str, Any]]:
        """Replays the changes, and returns the rows by their first column. Fails for a change that does not fit."""
        state: dict[Any, dict[str, Any]] = {}
        for change in (change for batch in self.batches for change in batch):
            kind, row = change["_change_type"], {k: v for k, v in change.items() if not k.startswith("_")}
            key = next(iter(row.values()))
            if kind in ("+I", "+U"):
                assert key not in state, change
                state[key] = row
            else:
                assert state.pop(key) == row
        return state

    @property
    def reader(self) -> ScanKvStreamReader:
        assert self._reader is not None, "the query was not started"
        return self._reader

    def _source(self) -> ScanKvDataSource:
        return ScanKvDataSource(CaseInsensitiveDict(self._options))

    def _limit(self) -> Any:
        return self.reader.getDefaultReadLimit()
