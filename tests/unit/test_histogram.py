from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from streaming_server.histogram import Histogram


def test_a_duration_is_counted_in_the_class_that_includes_it() -> None:
    histogram = Histogram((0.5, 1.0))
    for seconds in (0.1, 0.5, 0.6, 1.0, 3.0):
        histogram.observe(seconds)
    found = histogram.read()
    assert found.bounds == (0.5, 1.0)
    assert found.counts == (2, 2, 1)
    assert found.total == 5.2


def test_no_duration_of_several_threads_is_lost() -> None:
    histogram = Histogram()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(histogram.observe, [0.001] * 20_000))
    assert sum(histogram.read().counts) == 20_000
