"""Chunks made on the event loop or in a thread, and framed by protobuf or by hand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks import t4
from benchmarks.bench import Result, ResultTable
from benchmarks.experiments.variants import Variant, VariantReader, VariantServer
from benchmarks.measure import Spread, Timing, interleaved, paired_ratios
from benchmarks.workers import Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench


def run(bench: Bench) -> Result:
    """Scans T4 in every variant, in turn."""
    store = bench.store
    gaps: dict[Variant, list[float]] = {variant: [] for variant in Variant}
    with (
        Worker(VariantServer, store.copy("variants")) as server,
        Worker(VariantReader, server.call(VariantServer.url), t4.SCHEMA) as reader,
    ):

        def read(variant: Variant) -> Timing:
            server.call(VariantServer.longest_gap)
            timing = reader.call(VariantReader.read, variant).checked(store.rows)
            gaps[variant].append(server.call(VariantServer.longest_gap))
            return timing

        rates = interleaved(bench.runs, {variant.value: partial(read, variant) for variant in Variant})
    rows = []
    for variant in Variant:
        ratio = paired_ratios(rates[variant], rates[Variant.SERVED])
        gap = Spread.of(gaps[variant][1:])
        rate = Spread.of(rates[variant]).median
        rows.append((variant.value, rate, ratio.median, ratio.least, ratio.greatest, 1e3 * gap.median))
    columns = ("chunks", "rows/s", "against the first", "least", "greatest", "longest wait of the event loop, ms")
    return Result(
        tables=[ResultTable("How chunks are made and carried", columns, rows)],
        notes=[
            "Chunks: a bare grpc.aio server over the cursor and the decoder of ScanKV, and a bare client, both in "
            "processes of their own. Every variant makes and checks the checksum, and validates every batch. The wait "
            "is how late a 5 ms ticker of the server's event loop was at most.",
        ],
    )
