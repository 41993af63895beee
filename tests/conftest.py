"""Fixtures of all tests: a real server in its own process; and how workers, Hypothesis and the collector run."""

from __future__ import annotations

import ctypes
import gc
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final
from zlib import crc32

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from xdist.scheduler import LoadFileScheduling

from tests.support.collected import COLLECTED, ids_of
from tests.support.divided_tables import TABLETS, divide_new_tables
from tests.support.examples import FACTOR
from tests.support.forked import end_zygotes
from tests.support.server_process import WORKERS, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer

# No time limit for one example: a busy machine would break it. Each run draws others, so few of them do. Examples that
# grow too large while they are drawn, as whole tables may, count as filtered out.
settings.register_profile(
    "unhurried",
    deadline=None,
    max_examples=8 * FACTOR,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
settings.load_profile("unhurried")

if TABLETS > 1:
    divide_new_tables()

# Each thread would have a heap of its own. The many that tests start would leave 200 MB of free memory in theirs.
_M_ARENA_MAX: Final = -8
ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


_SPARK = "tests/spark/"
_CHECKER = "tests/model/checker/"
_SLICE: Final = os.environ.get("SCANKV_SLICE", "")
"""The slice of all tests that runs, such as `3/24`. Empty: all."""

# Seconds for tests without a mark of their own, where the default of pyproject.toml may not do on a busy machine.
_TIMEOUTS = {
    _SPARK: 300,  # The first one starts a virtual machine, and each query starts Python processes.
    "tests/integration/examples/": 300,  # A browser, Streamlit and jobs start.
    "tests/model/": 300,  # Long histories, in which the server is killed.
}
# One that fails looks for a simpler example for up to five minutes, and would not show it otherwise.
_HYPOTHESIS_TIMEOUT = 360 * FACTOR


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Has the collector wait while all tests are imported, none of which is garbage; see `_garbage`."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has the tests of Spark, which take longest and mostly wait, begin first; sets how long each test may take.

    Leaves to `make soak` the cases that others represent.

    Leaves out tests that need a server of one process if servers have more, and those that need tables without tablets
    if tables have any.
    """
    config.stash[COLLECTED] = ids_of(items)
    represented = _represented(config, items)
    if WORKERS > 1:
        _leave_out("one_process", config, items)
    if TABLETS > 1:
        _leave_out("whole_tables", config, items)
    items.sort(key=lambda item: not item.nodeid.startswith(_SPARK))
    for item in items:
        if item.get_closest_marker("soak"):
            # In front of a mark that is for the short variants of the same test.
            item.add_marker(pytest.mark.timeout(0), append=False)
        elif not item.get_closest_marker("timeout") and (seconds := _timeout_of(item)):
            item.add_marker(pytest.mark.timeout(seconds))
    for item in represented:
        item.add_marker(pytest.mark.breadth)
    if _SLICE:
        number, count = map(int, _SLICE.split("/"))
        items[:] = [item for item in items if crc32(item.nodeid.encode()) % count == number]


def _leave_out(marker: str, config: pytest.Config, items: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[each for each in items if each.get_closest_marker(marker)])
    items[:] = [each for each in items if not each.get_closest_marker(marker)]


def _represented(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the cases of tests with `represented_by` that neither are named there nor take minutes."""
    cases: defaultdict[str, set[str]] = defaultdict(set)
    named: dict[str, set[str]] = {}
    represented = []
    for item in items:
        if mark := item.get_closest_marker("represented_by"):
            name, _, case = item.nodeid.removesuffix("]").partition("[")
            cases[name].add(case)
            named[name] = set(mark.args)
            if case not in named[name] and not item.get_closest_marker("soak"):
                represented.append(item)
    # Single cases may have been chosen on the command line, or because they failed.
    if not config.getoption("lf", False) and not any("::" in argument for argument in config.args):
        for name, representatives in named.items():
            if unknown := representatives - cases[name]:
                raise pytest.UsageError(f"{name}: represented_by names what is no case: {sorted(unknown)}")
    return represented


def _timeout_of(item: pytest.Item) -> int | None:
    if is_hypothesis_test(getattr(item, "obj", None)):
        return _HYPOTHESIS_TIMEOUT
    return next((seconds for path, seconds in _TIMEOUTS.items() if item.nodeid.startswith(path)), None)


class _FilesAndSpark(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """Gives each file to one worker, and all of Spark to one, which starts a virtual machine for it once.

    The runs of the checker share nothing, and take minutes each in `make soak`: each goes to any worker.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_CHECKER):
            return nodeid
        return _SPARK if nodeid.startswith(_SPARK) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """How tests are given to workers with `--dist loadfile`."""
    return _FilesAndSpark(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _garbage() -> Iterator[None]:
    """Has the collector pass over all that the tests have imported, which each full collection would look at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _zygote() -> Iterator[None]:
    """Ends with the tests what their processes are forked from."""
    yield
    end_zygotes()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that only need some server; each uses table names of its own."""
    with ServerProcess(tmp_path_factory.mktemp("shared") / "data") as server:
        yield server


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of this test alone, which it may kill and restart."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server
