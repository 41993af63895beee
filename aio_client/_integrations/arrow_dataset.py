"""A table as a `pyarrow.dataset.Dataset`, from which DuckDB and others read only the columns and rows of a query."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.dataset

from aio_client._input.arguments import names_of
from scankv.model.errors import SchemaMismatch, UsageError, did_you_mean
from scankv.model.expressions import Predicate, all_of, bind, conjuncts, convert_arrow
from scankv.model.public_names import set_public_module

if TYPE_CHECKING:
    from builtins import object as Dataset  # pyarrow has no types
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow.compute as pc

    from aio_client._integrations.polars_frames import RefinableScan
    from scankv.model.scans.scan_spec import ScanSpec

    Columns: TypeAlias = Sequence[str] | Mapping[str, pc.Expression] | None
else:
    from pyarrow.dataset import Dataset


class RunningScan(Protocol):
    """The rows of a scan that has started, or starts with the first read."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def close(self) -> None:
        """Ends the scan."""


class TableDataset(Dataset):
    """The rows of a table for a query engine that reads datasets of pyarrow. Each scanner has a view of its own.

    `scanner(columns=, filter=)` reads the table: the server sends only these columns of the rows for which the filter
    is true. It evaluates the conjuncts that `Scan.where` accepts; the client evaluates the others on the rows that are
    left. `to_table`, `to_batches`, `head` and `count_rows`, of the dataset and of a scanner, block.

    Attributes:
        error: What has ended the last scan that failed, of which an engine may only show the text.
    """

    def __init__(self, schema: pa.Schema, scan: RefinableScan, start: Callable[[ScanSpec], RunningScan]) -> None:
        """Called by `Table.dataset`.

        Args:
            schema: The columns of the scan.
            scan: Reads all rows.
            start: Starts a scan for code that blocks; called in a thread of the reader.
        """
        self.error: Exception | None = None
        self._schema = schema
        self._scan = scan
        self._start = start

    def __repr__(self) -> str:
        return f"<TableDataset {self._scan.spec}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError("a dataset reads through its client, so it cannot be pickled: make it where it is read")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table when the dataset was made."""
        return self._schema

    @property
    def partition_expression(self) -> pc.Expression:
        """Always true: the dataset has no partitions."""
        return pyarrow.dataset.scalar(True)

    def scanner(self, columns: Columns = None, filter: pc.Expression | None = None, **_options: object) -> TableScanner:
        """Returns a scan of some columns of some rows, which starts when it is read.

        Args:
            columns: The columns to return, in this order, or expressions by the names of the columns that they become.
                Default: all.
            filter: Which rows to return: those for which it is true. Default: all.
            **_options: How pyarrow reads files, such as `batch_size`. They have no effect.

        Raises:
            UsageError: The filter is not an Arrow expression.
            SchemaMismatch: A column does not exist.
        """
        return TableScanner(self, columns, filter)

    def to_table(self, columns: Columns = None, filter: pc.Expression | None = None, **_options: object) -> pa.Table:
        """Returns the columns and rows of `scanner` in memory. Raises the errors of the scan."""
        return self.scanner(columns, filter).to_table()

    def to_batches(
        self, columns: Columns = None, filter: pc.Expression | None = None, **_options: object
    ) -> Iterator[pa.RecordBatch]:
        """Yields the columns and rows of `scanner` as they arrive. Raises the errors of the scan."""
        return self.scanner(columns, filter).to_batches()

    def head(
        self, num_rows: int, columns: Columns = None, filter: pc.Expression | None = None, **_options: object
    ) -> pa.Table:
        """Returns the first rows of `scanner`, at most so many. Raises the errors of the scan."""
        return self.scanner(columns, filter).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **_options: object) -> int:
        """Returns for how many rows a filter is true. Raises the errors of the scan."""
        return self.scanner(filter=filter).count_rows()

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[TableDataset]:
        """Yields the only part, which is the dataset itself."""
        del filter  # of the scanner
        yield self

    def filter(self, expression: pc.Expression) -> NoReturn:
        """Always raises UsageError: give the filter to `scanner` or `to_table`."""
        raise UsageError(f"give the filter to scanner or to_table: dataset.to_table(filter={expression})")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Always raises UsageError: the schema is that of the table."""
        raise UsageError(f"the schema is that of the table, and cannot be replaced by one of {len(schema)} columns")

    def sort_by(self, sorting: object, **_options: object) -> NoReturn:
        """Always raises UsageError: sort the table in memory."""
        raise UsageError(f"read the rows, and sort them: dataset.to_table().sort_by({sorting!r})")

    def join(self, *_arguments: object, **_options: object) -> NoReturn:
        """Always raises UsageError: join the tables in memory, or with DuckDB."""
        raise UsageError("read the rows, and join them: dataset.to_table().join(...), or join datasets with DuckDB")

    join_asof = join


class TableScanner:
    """One reading of a dataset. Several readers each have a scan of their own.

    A scan ends with its reader: when all rows are read, or when the reader is dropped.

    Attributes:
        dataset_schema: The columns of the table.
        projected_schema: The columns that are returned.
    """

    def __init__(self, dataset: TableDataset, columns: Columns, filter: pc.Expression | None) -> None:
        """Called by `TableDataset.scanner`."""
        self.dataset_schema: pa.Schema = dataset.schema
        columns = columns if columns is None or isinstance(columns, Mapping) else names_of(columns, "columns")
        self.projected_schema: pa.Schema = _projected(columns, self.dataset_schema)
        self._dataset = dataset
        self._columns = columns
        where = _where(filter, self.dataset_schema)
        # What the server cannot evaluate, Arrow evaluates, on the rows that the server returns.
        self._filter = None if where.is_complete else filter
        read = _read(columns, self._filter, self.dataset_schema)
        self._read_schema = pa.schema([self.dataset_schema.field(name) for name in read])
        self._scan = dataset._scan.select(read)
        if where.predicate is not None:
            self._scan = self._scan.where(where.predicate)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows as they arrive. Raises the errors of the scan."""
        return self._batches(self._scan)

    def to_reader(self) -> pa.RecordBatchReader:
        """Returns the rows as a reader, which receives them as they are read."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Returns all rows in memory."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int, **_options: object) -> pa.Table:
        """Returns the first rows, at most so many. The scan ends with the last of them."""
        batches, left = [], num_rows
        for batch in self._batches(self._scan.limit(num_rows) if self._filter is None else self._scan):
            batches.append(batch.slice(0, left))
            left -= batches[-1].num_rows
            if not left:
                break
        return pa.Table.from_batches(batches, self.projected_schema)

    def count_rows(self) -> int:
        """Returns how many rows there are. The server sends no columns if it evaluates the complete filter."""
        if self._filter is None:
            return TableScanner(self._dataset, [], None)._count(self._scan.select([]))
        return self._count(self._scan)

    def _count(self, scan: RefinableScan) -> int:
        return sum(batch.num_rows for batch in self._batches(scan))

    def _batches(self, scan: RefinableScan) -> Iterator[pa.RecordBatch]:
        rows = self._dataset._start(scan.spec)
        try:
            for batch in rows:
                yield from self._finish(batch)
        except Exception as error:
            self._dataset.error = error
            raise
        finally:
            # The reader may be dropped when the client is closed, which has ended the scan.
            with suppress(UsageError):
                rows.close()

    def _finish(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a batch that match the rest of the filter, with the columns wanted."""
        if batch.num_columns and not batch.schema.equals(self._read_schema):
            raise SchemaMismatch("the columns of the table have changed: make the dataset again, from client.table()")
        if self._filter is None and not isinstance(self._columns, Mapping):
            yield batch
            return
        rows = pyarrow.dataset.dataset(pa.Table.from_batches([batch]))
        columns = self._columns if isinstance(self._columns, Mapping) else self.projected_schema.names
        yield from rows.to_table(columns=columns, filter=self._filter, use_threads=False).to_batches()


class _Where(NamedTuple):
    """What the server evaluates of a filter, and whether that is all of it."""

    predicate: Predicate | None
    is_complete: bool


def _where(filter: pc.Expression | None, schema: pa.Schema) -> _Where:
    if filter is None:
        return _Where(None, is_complete=True)
    converted = convert_arrow(filter)
    parts = [part for predicate in converted.predicates for part in conjuncts(predicate)]
    evaluated = [part for part in parts if _fits(part, schema)]
    with suppress(UsageError):  # Together, they may be larger than the server allows.
        predicate = all_of(evaluated) if evaluated else None
        return _Where(predicate, is_complete=converted.reason is None and len(evaluated) == len(parts))
    return _Where(None, is_complete=False)


def _fits(predicate: Predicate, schema: pa.Schema) -> bool:
    try:
        bind(predicate, schema)
    except SchemaMismatch:
        return False
    return True


def _read(columns: Columns, filter: pc.Expression | None, schema: pa.Schema) -> list[str]:
    """Returns the columns to read, those to return first."""
    expressions = [*columns.values()] if isinstance(columns, Mapping) else []
    names = [] if isinstance(columns, Mapping) else list(schema.names if columns is None else columns)
    for expression in [*expressions, *([] if filter is None else [filter])]:
        found = convert_arrow(expression).columns
        names += schema.names if found is None else [name for name in schema.names if name in found]
    return list(dict.fromkeys(names))


def _projected(columns: Columns, schema: pa.Schema) -> pa.Schema:
    """Returns the schema of some columns, or of expressions by name."""
    if isinstance(columns, Mapping):
        return pyarrow.dataset.dataset(schema.empty_table()).scanner(columns=dict(columns)).projected_schema
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise SchemaMismatch(f'"{name}" is not a column{did_you_mean(name, schema.names)}', column=name)
    return pa.schema([schema.field(name) for name in columns])


set_public_module("scankv", globals(), ["TableDataset"])
