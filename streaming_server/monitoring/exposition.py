"""Writes metrics in the text format of Prometheus."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from streaming_server.histogram import Distribution
from streaming_server.monitoring.catalog import METRICS, Metric

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric as Family

    from streaming_server.monitoring.metrics_reader import Values

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""The media type of the text."""


def render(values: Values) -> bytes:
    """Returns the text of values by metric and label, and of the standard metrics of a process. May run in any thread.

    A metric without values has its name and help only.
    """
    registry = CollectorRegistry()
    registry.register(_Collected(values))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, values: Values) -> None:
        self._values = values

    def describe(self) -> list[Family]:
        """Returns no metrics, so that the registry does not read the values twice to learn their names."""
        return []

    def collect(self) -> Iterator[Family]:
        for metric in METRICS.values():
            yield _family(metric, self._values[metric.name])


def _family(metric: Metric, values: Mapping[tuple[str, ...], float | Distribution]) -> Family:
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            assert isinstance(value, Distribution)
            bounds = [*(f"{bound:g}" for bound in value.bounds), "+Inf"]
            counts = [float(count) for count in accumulate(value.counts)]
            histogram.add_metric(labels, list(zip(bounds, counts, strict=True)), value.total)
        return histogram
    family = (GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily)(
        metric.name, metric.help, labels=metric.labels
    )
    for labels, value in values.items():
        assert not isinstance(value, Distribution)
        family.add_metric(labels, value)
    return family
