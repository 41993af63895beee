"""What writers of an altered table do, and what they and others must find: each has the rows of its own name.

Every row has a positive number in the column that was `a` when the table was created, and its negative in the one that
was `b`, whatever the columns are called by now: renaming keeps their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from scankv.model.errors import (
    InvalidRequest,
    TableExists,
    TableNotFound,
    TableRecreated,
    TransactionConflict,
    TransactionLost,
    WriteConflict,
)
from tests.support.altered_tables import FEW_TABLETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import scankv

FIRST: Final = 2
"""The position of the column that was `a`."""

SCHEMA: Final = pa.schema(
    [
        pa.field("who", pa.string(), nullable=False),
        pa.field("k", pa.int64(), nullable=False),
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def names_of(table: scankv.Table) -> tuple[str, str]:
    """Returns what a table as it was opened calls the columns that were `a` and `b`."""
    first, second = table.schema.names[FIRST : FIRST + 2]
    return first, second


def rows_for(table: scankv.Table, who: str, keys: Sequence[int], n: int) -> list[dict[str, Any]]:
    """Returns rows with a number, for the columns of a table as it was opened."""
    first, second = names_of(table)
    return [{"who": who, "k": k, first: n, second: -n} for k in keys]


def arrow_for(table: scankv.Table, who: str, keys: Sequence[int], n: int) -> pa.Table:
    """As `rows_for`, as Arrow data."""
    size = len(keys)
    values = {
        "who": [who] * size,
        "k": list(keys),
        **dict(zip(names_of(table), ([n] * size, [-n] * size), strict=True)),
    }
    return pa.table([values.get(field.name, [None] * size) for field in table.schema], schema=table.schema)


def numbers_of(rows: pa.Table | pa.RecordBatch, *, second: bool = True) -> list[int]:
    """Returns the numbers of rows. Fails for a row whose columns are not of one version.

    Args:
        rows: Complete rows.
        second: Whether the second column has the negative number; otherwise it is null.
    """
    ones: list[Any] = rows.column(FIRST).to_pylist()
    others: list[Any] = rows.column(FIRST + 1).to_pylist()
    for one, other in zip(ones, others, strict=True):
        if one is None or one <= 0 or other != (-one if second else None):
            raise AssertionError(f"a row with {one} and {other} in {rows.schema.names}")
    return ones


class StoryPart(ABC):
    """What one task does again and again. Its methods fail with AssertionError if no single instant explains an answer.

    Args:
        client: A client that only this task uses.
        name: The table.
        who: The name of its rows.
    """

    def __init__(self, client: scankv.Client, name: str, who: str) -> None:
        self.client = client
        self.name = name
        self.who = who
        self.steps = 0
        self.outcomes: Counter[str] = Counter()
        self._table: scankv.Table | None = None

    async def run(self, _: scankv.Table) -> str:
        """Does one step. Returns what is wrong, or nothing."""
        self.steps += 1
        if self.steps % 4 == 1 or self._table is None:
            # Otherwise the table may have other columns by now.
            self._table = await self.client.table(self.name)
        try:
            await self.step(self._table)
        except AssertionError as error:
            return str(error) or repr(error)
        except (TableNotFound, TableRecreated):
            self._table = None
            raise
        except InvalidRequest as error:
            if "abort the transaction" not in error.message:
                raise
            # A tablet that was not reached keeps what the others have discarded.
            raise TransactionLost(error.message) from error
        return ""

    @abstractmethod
    async def step(self, table: scankv.Table) -> None:
        """Does one step."""

    async def check(self, table: scankv.Table) -> None:  # noqa: B027  # most parts check each step
        """Checks what is left at the end. Nobody else uses the table by then."""

    async def aclose(self) -> None:  # noqa: B027
        """Ends what it has begun."""


class NumberWriter(StoryPart):
    """Writes its rows with one number after another, and reads them after each write that was answered.

    Attributes:
        may_be: The numbers that a row may have. 0: there is no row.
        keys: The keys of its rows.
    """

    ROWS: ClassVar[int] = 40
    AT_ONCE: ClassVar[bool] = False
    """Whether all rows are written at one instant, even if a process fails."""
    SECOND: ClassVar[bool] = True
    """Whether it writes both columns."""

    def __init__(self, client: scankv.Client, name: str, who: str) -> None:
        super().__init__(client, name, who)
        self.number = 0
        self.may_be = {0}
        self.keys = range(self.ROWS)
        self._incarnation = ""

    @abstractmethod
    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        """Writes all rows with a number. Returns the incarnation of the table that has them, and the number."""

    async def step(self, table: scankv.Table) -> None:
        self.number += 1
        n, before = self.number, set(self.may_be)
        self.may_be.add(n)
        try:
            incarnation, n = await self.write(table, n)
        except (WriteConflict, TransactionConflict) as error:
            # These say that nothing was written.
            self.may_be = before
            self.outcomes[type(error).__name__] += 1
        else:
            self.may_be, self._incarnation = {n}, incarnation
            self.outcomes["written"] += 1
        await self.check(table)

    async def check(self, table: scankv.Table) -> None:
        async with table.scan().prefix(self.who).stream() as stream:
            batches = [batch async for batch in stream]
            incarnation = stream.table_incarnation
        numbers = [n for batch in batches for n in numbers_of(batch, second=self.SECOND)]
        found = Counter(numbers)
        missing = self.ROWS - found.total()
        assert missing >= 0, f"{found.total()} rows of {self.who}"
        if missing:
            found[0] = missing
        if incarnation == self._incarnation:
            assert set(found) <= self.may_be, f"{dict(found)} instead of {self.may_be}"
        else:
            # The table was created again: nothing of an answered write is there, unless an unanswered one followed.
            self.may_be |= {0}
        if self.AT_ONCE:
            assert len(found) == 1, f"{dict(found)} at one instant"


class WritesEachRow(NumberWriter):
    """Upserts each row alone, and gets it."""

    ROWS = 8

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        for k in self.keys:
            result = await table.upsert(rows_for(table, self.who, [k], n))
        return result.log_offsets.table_incarnation, n


class WritesFewRows(NumberWriter):
    """Upserts some rows in one request."""

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        result = await table.upsert(rows_for(table, self.who, self.keys, n))
        return result.log_offsets.table_incarnation, n


class WritesManyRows(NumberWriter):
    """Upserts so many rows that the client sends them to the owners of their tablets."""

    ROWS = 1500

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        result = await table.upsert(arrow_for(table, self.who, self.keys, n))
        return result.log_offsets.table_incarnation, n


class WritesAndUndoes(NumberWriter):
    """Upserts rows with a writer of an id, and undoes a second write of it."""

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        self.may_be.add(self.number + 1)
        self.number += 1
        async with table.writer(id=self.who) as writer:
            await writer.upsert(arrow_for(table, self.who, self.keys, n))
            await writer.flush()
            offsets = await table.log_offsets()
            await writer.upsert(arrow_for(table, self.who, self.keys, n + 1))
            result = await writer.flush()
        if result.log_offsets.table_incarnation != offsets.table_incarnation:
            return result.log_offsets.table_incarnation, n + 1
        report = await table.undo(self.who, offsets)
        done = (report.restored + report.deleted, report.conflicts)
        assert done == (self.ROWS, 0), f"an undo of {self.ROWS} rows has done {report}"
        # Rows that the first write has not found in a table created again were inserted by the second one.
        return (offsets.table_incarnation, n) if report.restored == self.ROWS else ("", n)


class WritesOneColumn(NumberWriter):
    """Upserts the first column alone."""

    SECOND = False

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        first, _ = names_of(table)
        rows = [{"who": self.who, "k": k, first: n} for k in self.keys]
        result = await table.upsert(rows, columns=["who", "k", first])
        return result.log_offsets.table_incarnation, n


class CountsUp(NumberWriter):
    """Adds one to all rows, if they have not changed since they were read. Several of them share the rows."""

    ROWS = 8

    def __init__(self, client: scankv.Client, name: str, who: str, counts: Counter[str]) -> None:
        super().__init__(client, name, who)
        self._counts = counts

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        raise NotImplementedError

    async def step(self, table: scankv.Table) -> None:
        keys = [(self.who, k) for k in self.keys]
        found = await table.lookup(keys, with_version=True)
        numbers = set(numbers_of(found.rows)) or {0}
        self._counts["begun"] += 1
        try:
            result = await table.upsert(
                rows_for(table, self.who, self.keys, max(numbers) + 1), if_version=found.log_offsets
            )
        except (WriteConflict, TableRecreated) as error:
            self._counts["refused"] += 1
            self.outcomes[type(error).__name__] += 1
            return
        assert len(numbers) == 1, f"{numbers} were unchanged"
        self._counts[result.log_offsets.table_incarnation] += 1
        self._counts["done"] += 1

    async def check(self, table: scankv.Table) -> None:
        found = await table.lookup([(self.who, k) for k in self.keys], with_version=True)
        numbers = set(numbers_of(found.rows)) or {0}
        done = self._counts[found.log_offsets.table_incarnation]
        unknown = self._counts["begun"] - self._counts["done"] - self._counts["refused"]
        assert done <= max(numbers) <= done + unknown, f"{numbers} after {dict(self._counts)}"
        assert len(numbers) == 1 or unknown, f"{numbers} after {dict(self._counts)}"


class WritesInTransactions(NumberWriter):
    """Upserts rows in a transaction that reads what it has staged, and what it had before."""

    AT_ONCE = True

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        keys = [(self.who, k) for k in self.keys]
        half = len(keys) // 2
        async with self.client.transaction(conflict="abort") as transaction:
            before = set(numbers_of(await transaction.get_for_update(table, keys))) or {0}
            await transaction.upsert(table, rows_for(table, self.who, self.keys[:half], n))
            await transaction.upsert(table, arrow_for(table, self.who, self.keys[half:], n))
            staged = await transaction.lookup(table, keys)
        assert set(numbers_of(staged)) == {n}, f"staged {set(numbers_of(staged))} instead of {n}"
        assert len(staged) == len(keys), f"staged {len(staged)} rows"
        assert len(before) == 1, f"{before} before a transaction that was committed"
        result = transaction.result
        assert result is not None
        return result.log_offsets[table.name].table_incarnation, n


class ReplacesRows(NumberWriter):
    """Replaces its rows."""

    AT_ONCE = True

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        rows = rows_for(table, self.who, self.keys, n)
        if n % 2:
            result = await table.replace(rows, where=f"who = '{self.who}'")
        else:
            ends = (self.who, self.keys[0]), (self.who, self.keys[-1])
            result = await table.replace(rows, key_range=ends)
        return result.log_offsets.table_incarnation, n


class DeletesWhere(NumberWriter):
    """Upserts rows in a transaction, and deletes them by their numbers."""

    AT_ONCE = True

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        first, _ = names_of(table)
        async with self.client.transaction() as transaction:
            await transaction.upsert(table, rows_for(table, self.who, self.keys, n))
        self.may_be.add(0)
        assert transaction.result is not None
        written = transaction.result.log_offsets[table.name].table_incarnation
        result = await table.delete(where=f"who = '{self.who}' AND {first} = {n}")
        # If the columns were swapped in between, no row has the number.
        assert result.rows in (0, self.ROWS), f"{result.rows} rows were deleted"
        if result.rows:
            return result.log_offsets.table_incarnation, 0
        self.outcomes["kept"] += 1
        return written, n


class DeletesKeys(NumberWriter):
    """Upserts rows and deletes them by their keys."""

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        await table.upsert(rows_for(table, self.who, self.keys, n))
        self.may_be.add(0)
        result = await table.delete([(self.who, k) for k in self.keys])
        return result.log_offsets.table_incarnation, 0


class RewritesTable(NumberWriter):
    """Deletes all rows of a table of its own and writes others, in one transaction or after a truncation."""

    ROWS = 200

    async def write(self, table: scankv.Table, n: int) -> tuple[str, int]:
        if n % 4 == 0:
            self.may_be.add(0)
            await table.truncate(track_changes=n % 8 == 0)
            await self._expect(table, {0})
        async with self.client.transaction() as transaction:
            await transaction.delete_all(table)
            await transaction.upsert(table, arrow_for(table, self.who, self.keys, n))
        assert transaction.result is not None
        return transaction.result.log_offsets[table.name].table_incarnation, n

    async def _expect(self, table: scankv.Table, numbers: set[int]) -> None:
        found = set(numbers_of(await table.scan().to_arrow())) or {0}
        assert found <= numbers, f"{found} instead of {numbers}"


class BootstrapsTables(StoryPart):
    """Makes a table of its own with all rows, alters it, reads it, and drops it."""

    ROWS: ClassVar[int] = 500

    async def step(self, table: scankv.Table) -> None:
        name, n = f"{self.name}_{self.who}", self.steps
        with suppress(TableNotFound):
            await self.client.drop_table(name)
        rows = arrow_for(table, self.who, range(self.ROWS), n)
        with suppress(TableExists):  # An unanswered attempt may have made it.
            await self.client.bootstrap(
                name,
                rows.select(range(len(SCHEMA))).rename_columns(SCHEMA.names),
                schema=SCHEMA,
                primary_key=["who", "k"],
                bucket_key=["k"],
                buckets=FEW_TABLETS,
                tablets=FEW_TABLETS,
            )
        made = await self.client.alter_table(name, rename_columns={"a": "b", "b": "a"})
        numbers = Counter(numbers_of(await made.scan().to_arrow()))
        assert numbers == {n: self.ROWS}, f"{dict(numbers)} after a bootstrap of {n}"
