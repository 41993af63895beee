"""A random history of a published table, of which union reads are compared with the live table all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aio_client import LakeVersionNotFound, RangeNotTracked, StartFrom, StopAt
from scankv.lake.formats import open_lake_table
from tests.model.lake_history import KEY, LakeHistory
from tests.support.lake_readers import sorted_rows

if TYPE_CHECKING:
    from random import Random

    from aio_client import Client, Scan
    from scankv.lake.publisher import PublishOptions

_PREDICATES = [None, "id < 30", "day > DATE '2026-11-02' and id in (1, 5, 17, 33)", "not (id > 10 and id < 50)"]


class UnionHistory(LakeHistory):
    """A history of a table with union reads.

    Attributes:
        fallbacks: How often the server was read alone, by the reason. None: how often it was not.
        expirations: How often the files of earlier versions were deleted.
        followed: How often the changes since the latest version were compared.
    """

    def __init__(
        self, client: Client, name: str, format_: str, uri: str, random: Random, options: PublishOptions
    ) -> None:
        super().__init__(client, name, format_, uri, random, options)
        self._uri = uri
        self.fallbacks: dict[str | None, int] = {}
        self.followed = 0
        self.expirations = 0

    async def read(self) -> None:
        """Compares a union read with a live scan of the same pinned view, while the table may change."""
        random = self._random
        where = random.choice(_PREDICATES)
        others = [each for each in self._table.schema.names if each not in KEY]
        columns = [*random.sample(others, random.randrange(len(others) + 1)), *KEY]
        async with self._table.snapshot() as pinned:
            if random.random() < 0.3:
                await self._upsert()
            scan = self._table.scan(columns, where=where).as_of(pinned)
            async with scan.read_path("lake", self._uri).stream() as stream:
                batches = [rows async for rows in stream]
                reason, offsets = stream.lake_fallback, stream.log_offsets
            found = pa.Table.from_batches(batches, stream.schema)
            expected = await scan.to_arrow()
            assert found.schema == expected.schema
            assert offsets == pinned.log_offsets
            assert sorted_rows(found, KEY) == sorted_rows(expected, KEY), (reason, where, columns)
        self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1

    async def travel(self) -> None:
        """Compares an earlier version with the rows that the table had when it was published."""
        if not self.versions:
            return
        version = self._random.choice(list(self.versions))
        (text,) = {"text", "label"} & set(self._table.schema.names)
        scan = self._table.scan([*KEY, "value", text]).as_of(version).read_path("lake", self._uri)
        expected = [
            {name: row[name] for name in (*KEY, "value")} | {text: row["text"] if "text" in row else row["label"]}
            for row in self.versions[version]
        ]
        try:
            found = await scan.to_arrow()
        except LakeVersionNotFound:
            assert self.expirations
            assert version < max(self.versions)
        else:
            assert sorted_rows(found, KEY) == expected, version

    def expire(self) -> None:
        """Deletes the files that only earlier versions need."""
        open_lake_table(self._uri, self._lake.format, keep_seconds=0).expire(orphan_seconds=0)
        self.expirations += 1

    async def follow(self) -> None:
        """Compares what changes lead to that begin with all rows of the table, or with those of the latest version."""
        if not self.versions:
            return
        found: list[list[dict[str, Any]]] = []
        for start in (StartFrom.lake(self._uri), StartFrom.FULL):
            scan = self._table.changes(start, StopAt.LATEST).with_chunk(rows=self._random.choice([3, 1000]))
            try:
                found.append(_rows_after(await self._changes(scan)))
            except RangeNotTracked:
                return
        assert found[0] == found[1]
        self.followed += 1

    async def _changes(self, scan: Scan) -> list[dict[str, Any]]:
        """Returns the changes of a scan, during which the reader starts again at random."""
        changes: list[dict[str, Any]] = []
        token = None
        while True:
            async with (scan if token is None else scan.resume_from(token)).stream() as stream:
                async for rows in stream:
                    changes += rows.to_pylist()
                    token = stream.resume_token
                    if self._random.random() < 0.1:
                        break
                else:
                    return changes

    async def rename_or_widen(self) -> None:
        """Gives a column another name or a wider type."""
        schema = self._table.schema
        if self._random.random() < 0.5 and "value" in schema.names and schema.field("value").type == pa.int32():
            await self._client.alter_table(self._name, column_types={"value": pa.int64()})
        else:
            before, after = ("text", "label") if "text" in schema.names else ("label", "text")
            await self._client.alter_table(self._name, rename_columns={before: after})
        self._table = await self._client.table(self._name)


def _rows_after(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows that a reader of changes has at their end, in the order of their keys."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for change in changes:
        key = tuple(change[name] for name in KEY)
        if change["_change_type"] == "-D":
            rows.pop(key, None)  # with changelog="upsert", also of keys without a row
        elif change["_change_type"] != "-U":
            rows[key] = {name: value for name, value in change.items() if not name.startswith("_")}
    return [rows[key] for key in sorted(rows)]
