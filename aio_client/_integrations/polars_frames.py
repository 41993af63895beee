"""A scan as a Polars LazyFrame, of which `collect` reads no more than the query needs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from aio_client._input.optional import import_optional
from aio_client._integrations.polars_predicates import pushed_down
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import polars as pl
    import pyarrow as pa

    from aio_client._integrations.blocking_stream import BlockingStream
    from scankv.model.expressions import Predicate
    from scankv.model.scans.scan_spec import ScanSpec


class Narrowable(Protocol):
    """A scan that can be refined."""

    @property
    def spec(self) -> ScanSpec: ...

    def select(self, columns: Sequence[str]) -> Narrowable: ...

    def limit(self, rows: int) -> Narrowable: ...

    def where(self, where: Predicate) -> Narrowable: ...


def lazy_frame(scan: Narrowable, schema: pa.Schema, start: Callable[[ScanSpec], BlockingStream]) -> pl.LazyFrame:
    """Makes a LazyFrame whose every `collect` runs the scan anew.

    Args:
        scan: What is read at most.
        schema: Of its rows.
        start: Starts a scan for code that blocks; called in a thread of Polars.
    """
    polars, plugins = import_optional("polars"), import_optional("polars.io.plugins")

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        stream = start(narrowed(scan, schema, columns, predicate, rows).spec)
        try:
            for batch in _first(rows, stream):
                frame = polars.from_arrow(batch)
                # What was pushed down is true of these rows already; what was not is decided here.
                frame = frame if predicate is None else frame.filter(predicate)
                yield frame if columns is None else frame.select(columns)
        finally:
            # Polars may let go of this much later; a client closed meanwhile has ended the scan.
            with suppress(UsageError):
                stream.close()

    frame: pl.LazyFrame = plugins.register_io_source(read, schema=polars.from_arrow(schema.empty_table()).schema)
    return frame


def _first(rows: int | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches up to so many rows, which the limit of a scan with a resume token does not see to."""
    left = rows
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


def narrowed(
    scan: Narrowable, schema: pa.Schema, columns: Sequence[str] | None, predicate: pl.Expr | None, rows: int | None
) -> Narrowable:
    """The scan that reads as little as Polars asks for.

    Args:
        scan: What is read at most.
        schema: Of its rows.
        columns: The columns that Polars wants, those of the predicate among them; None for all.
        predicate: What Polars keeps of the rows; of the first `rows`, where that is given.
        rows: How many rows Polars wants; None for all.
    """
    # A token belongs to exactly its scan; changes have columns of their own, of which the server knows no predicate.
    if scan.spec.resume_token is not None or scan.spec.log is not None:
        return scan
    limits = [limit for limit in (scan.spec.limit, rows) if limit is not None]
    # With a limit the predicate is about the rows within it, where the server would look for others.
    where = None if predicate is None or limits else pushed_down(predicate, schema)
    if columns:
        scan = scan.select(columns)
    if limits:
        scan = scan.limit(min(limits))
    return scan if where is None else scan.where(where)
