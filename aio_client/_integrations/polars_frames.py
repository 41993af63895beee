"""A scan as a Polars LazyFrame, whose `collect` reads no more than the query needs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from aio_client._input.optional import import_optional
from aio_client._input.other_rows import polars_schema, to_polars
from aio_client._integrations.polars_predicates import translate_predicate
from scankv.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import polars as pl
    import pyarrow as pa

    from aio_client._integrations.blocking_stream import BlockingStream
    from scankv.model.expressions import Predicate
    from scankv.model.scans.scan_spec import ScanSpec


class RefinableScan(Protocol):
    """A scan, of either client."""

    @property
    def spec(self) -> ScanSpec: ...

    def select(self, columns: Sequence[str]) -> RefinableScan: ...

    def limit(self, rows: int) -> RefinableScan: ...

    def where(self, where: Predicate) -> RefinableScan: ...


def lazy_frame(scan: RefinableScan, schema: pa.Schema, start: Callable[[ScanSpec], BlockingStream]) -> pl.LazyFrame:
    """Makes a LazyFrame that runs the scan with every `collect`.

    Args:
        scan: The scan without the query's refinements.
        schema: The schema of its rows.
        start: Starts a scan for code that blocks; called in a thread of Polars.
    """
    plugins = import_optional("polars.io.plugins")

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        stream = start(refine_scan(scan, schema, columns, predicate, rows).spec)
        try:
            for batch in _first_rows(rows, stream):
                frame = to_polars(batch)
                # The rows match the part of the predicate that was pushed down. Polars evaluates the rest.
                frame = frame if predicate is None else frame.filter(predicate)
                yield frame if columns is None else frame.select(columns)
        finally:
            # Polars may drop this generator much later, when the client is closed and has ended the scan.
            with suppress(UsageError):
                stream.close()

    frame: pl.LazyFrame = plugins.register_io_source(read, schema=polars_schema(schema))
    return frame


def _first_rows(rows: int | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches up to this many rows. Needed for a scan with a resume token, whose limit stays as it is."""
    left = rows
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


def refine_scan(
    scan: RefinableScan, schema: pa.Schema, columns: Sequence[str] | None, predicate: pl.Expr | None, rows: int | None
) -> RefinableScan:
    """Returns the scan that reads as little as Polars asks for.

    Args:
        scan: The scan without the query's refinements.
        schema: The schema of its rows.
        columns: The columns that Polars wants, including those of the predicate; None for all.
        predicate: The predicate that Polars applies; with `rows`, to the first `rows` rows.
        rows: How many rows Polars wants; None for all.
    """
    # A token fits only its own scan. Changes have additional columns, for which the server takes no predicate.
    if scan.spec.resume_token is not None or scan.spec.log is not None:
        return scan
    limits = [limit for limit in (scan.spec.limit, rows) if limit is not None]
    # With a limit, the predicate applies to the rows within it, but the server would look for further matching rows.
    where = None if predicate is None or limits else translate_predicate(predicate, schema)
    if columns:
        scan = scan.select(columns)
    if limits:
        scan = scan.limit(min(limits))
    return scan if where is None else scan.where(where)
