"""A random history of a table: writes of every kind, changed columns, and publishing in between."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from scankv.lake.formats import open_lake_table
from scankv.lake.publisher import PublishOptions, publish
from tests.support.lake_readers import live_rows, reader, sorted_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from aio_client import Client, Table

KEY: Final = ["day", "id"]
SCHEMA: Final = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("value", pa.int32()), ("text", pa.string())])
_DAYS: Final = [dt.date(2026, 11, day) for day in range(1, 5)]
_MOST_IDS: Final = 60


class LakeHistory:
    """Changes a table at random, publishes it at random, and compares each version with the table.

    Attributes:
        versions: The rows that the table had when each version was published.
        modes: How often a pass had each result.
    """

    def __init__(
        self, client: Client, name: str, format_: str, uri: str, random: Random, options: PublishOptions
    ) -> None:
        self.versions: dict[int, list[dict[str, Any]]] = {}
        self.modes: dict[str, int] = {}
        self._client = client
        self._name = name
        self._lake = open_lake_table(uri, format_)
        self._reader = reader(format_, uri)
        self._random = random
        self._options = options
        self._added = 0
        self._table: Table

    async def create(self, **options: Any) -> None:  # arguments of `create_table`
        """Creates the table."""
        self._table = await self._client.create_table(self._name, SCHEMA, primary_key=KEY, **options)

    async def step(self) -> None:
        """Changes the table, or publishes it."""
        steps: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._upsert, 6),
            (self._delete, 3),
            (self._delete_where, 1),
            (self._delete_range, 1),
            (self._upsert_untracked, 1),
            (self._truncate, 1),
            (self._change_columns, 1),
            (self._commit, 2),
            (self.publish, 6),
        ]
        (chosen,) = self._random.choices([step for step, _ in steps], [weight for _, weight in steps])
        await chosen()

    async def publish(self) -> None:
        """Publishes the table, and checks what a reader sees."""
        report = await publish(self._client, self._name, self._lake, self._options)
        rows = await live_rows(self._table)
        assert sorted_rows(self._reader.read(), KEY) == rows
        if report.mode == "unchanged":
            assert self.versions[report.version] == rows
        else:
            assert report.version == max(self.versions, default=self._reader.first_version - 1) + 1
            self.versions[report.version] = rows
        self.modes[report.mode] = self.modes.get(report.mode, 0) + 1

    def check_versions(self) -> None:
        """Checks that every version still shows the table as it was then."""
        assert self._reader.versions() == list(self.versions)
        for version, rows in self.versions.items():
            assert sorted_rows(self._reader.read(version), KEY) == rows

    def _keys(self, most: int = 20) -> list[dict[str, Any]]:
        day, first = self._random.choice(_DAYS), self._random.randrange(_MOST_IDS)
        if self._random.random() < 0.5:
            return [{"day": day, "id": first + number} for number in range(self._random.randrange(1, most))]
        numbers = self._random.sample(range(_MOST_IDS), self._random.randrange(1, most))
        return [{"day": self._random.choice(_DAYS), "id": number} for number in numbers]

    def _rows(self) -> list[dict[str, Any]]:
        return [
            key
            | {
                name: self._random.choice([None, self._random.randrange(100)])
                for name, type_ in zip(self._table.schema.names, self._table.schema.types, strict=True)
                if pa.types.is_integer(type_) and name not in KEY
            }
            for key in self._keys()
        ]

    async def _upsert(self) -> None:
        await self._table.upsert(self._rows())

    async def _delete(self) -> None:
        await self._table.delete(self._keys())

    async def _delete_where(self) -> None:
        await self._table.delete(where=f"id < {self._random.randrange(_MOST_IDS)} and day = DATE '{_DAYS[0]}'")

    async def _delete_range(self) -> None:
        await self._table.delete(where=f"day = DATE '{self._random.choice(_DAYS)}'", track_changes=False)

    async def _upsert_untracked(self) -> None:
        await self._table.upsert(self._rows(), track_changes=False)

    async def _truncate(self) -> None:
        await self._table.truncate()

    async def _commit(self) -> None:
        async with self._client.transaction() as tx:
            await tx.upsert(self._table, self._rows())
            await tx.delete(self._table, self._keys())

    async def _change_columns(self) -> None:
        numbers = [name for name in self._table.schema.names if name.startswith("n")]
        if numbers and self._random.random() < 0.5:
            await self._client.alter_table(self._name, drop_columns=[self._random.choice(numbers)])
        elif numbers and self._random.random() < 0.4:
            new = {name: f"n{self._random.randrange(1, 5)}" for name in [self._random.choice(numbers)]}
            if not set(new.values()) & set(self._table.schema.names):
                await self._client.alter_table(self._name, rename_columns=new)
        else:
            self._added += 1
            # Sometimes a name that a dropped column had.
            name = f"n{self._random.randrange(1, 4)}"
            if name not in self._table.schema.names:
                defaults = {name: 7} if self._random.random() < 0.3 else None
                added = pa.schema([(name, pa.int64())])
                await self._client.alter_table(self._name, add_columns=added, column_defaults=defaults)
        self._table = await self._client.table(self._name)
