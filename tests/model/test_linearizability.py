"""The search for an order accepts what an order explains, and nothing else: it agrees with trying all orders."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations, permutations
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model import linearizability
from tests.model.linearizability import UndecidedHistory, connected_parts, problem_of
from tests.model.operations import FOREVER, RecordedOperation
from tests.support.examples import examples, seeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.model.operations import Key, Value

A, B, C = ("t", 0), ("t", 1), ("t", 2)
KEYS = (A, B, C)


def upsert(start: float, end: float, value: Value, key: Key = A) -> RecordedOperation:
    return RecordedOperation("upsert", start, end, writes={key: value})


def get(start: float, end: float, value: Value, key: Key = A) -> RecordedOperation:
    return RecordedOperation("get", start, end, reads={key: value})


def scan(start: float, end: float, *values: Value) -> RecordedOperation:
    return RecordedOperation("scan", start, end, reads=dict(zip(KEYS, values, strict=False)))


def transaction(start: float, end: float, *values: Value) -> RecordedOperation:
    return RecordedOperation("transaction", start, end, writes=dict(zip(KEYS, values, strict=False)))


ACCEPTED = {
    "nothing": [],
    "a read of no row": [get(1, 2, None)],
    "a read that begins after a write": [upsert(1, 2, 1), get(3, 4, 1)],
    "a read during a write sees it or not": [upsert(1, 6, 1), get(2, 3, None), get(4, 5, 1)],
    "concurrent writes in either order": [upsert(1, 4, 1), upsert(2, 3, 2), get(5, 6, 1)],
    "a write without an answer that never took effect": [upsert(1, FOREVER, 1), get(2, 3, None)],
    "a write without an answer that took effect late": [upsert(1, FOREVER, 1), get(2, 3, None), get(4, 5, 1)],
    "a delete without an answer": [upsert(1, 2, 1), upsert(3, FOREVER, None), get(4, 5, 1), get(6, 7, None)],
    "a scan between two writes": [upsert(1, 2, 1), upsert(3, 8, 2, B), scan(4, 5, 1, None), scan(6, 7, 1, 2)],
    "a pin, which is read later": [upsert(1, 2, 1), scan(3, 4, 1, None), upsert(5, 6, 2), scan(3, 4, 1, None)],
    "a transaction without an answer, seen by another": [
        transaction(1, FOREVER, 1, 1),
        RecordedOperation("transaction", 2, FOREVER, reads={A: 1}, writes={B: 2}),
        scan(3, 4, 1, 2),
    ],
    "one of two transactions that read the same": [
        RecordedOperation("transaction", 1, 4, reads={A: None}, writes={A: 1}),
        RecordedOperation("transaction", 2, 3, reads={A: 1}, writes={A: 2}),
    ],
}

REFUSED = {
    "a stale read": [upsert(1, 2, 1), upsert(3, 4, 2), get(5, 6, 1)],
    "an acknowledged write that is lost": [upsert(1, 2, 1), get(3, 4, None)],
    "a read that goes back": [upsert(1, 6, 1), get(2, 3, 1), get(4, 5, None)],
    "a deleted row that is back": [upsert(1, 2, 1), upsert(3, 4, None), get(5, 6, None), get(7, 8, 1)],
    "a write that is applied twice": [upsert(1, 2, 1), upsert(3, 4, 2), get(5, 6, 2), get(7, 8, 1)],
    "a value that nothing wrote": [upsert(1, 2, 1), get(3, 4, 2)],
    "a value that was written later": [get(1, 2, 1), upsert(3, 4, 1)],
    "a write without an answer that is undone": [upsert(1, FOREVER, 1), get(2, 3, 1), get(4, 5, None)],
    "a scan of two instants": [upsert(1, 2, 1), upsert(3, 4, 2, B), scan(0, 9, None, 2)],
    "two scans that see two writes in different orders": [
        upsert(1, 9, 1),
        upsert(2, 8, 2, B),
        scan(3, 7, 1, None),
        scan(4, 6, None, 2),
    ],
    "a pin that changes": [upsert(1, 9, 1), scan(2, 3, 1, None), scan(4, 5, None, None)],
    "half a transaction": [transaction(1, 2, 1, 1), scan(3, 4, 1, None)],
    "half a transaction while it commits": [transaction(1, 6, 1, 1), scan(2, 3, 1, None)],
    "half a transaction without an answer": [transaction(1, FOREVER, 1, 1), scan(2, 3, None, 1)],
    "half a transaction that deletes": [
        transaction(1, 2, 1, 1),
        transaction(3, FOREVER, None, None),
        scan(4, 5, None, 1),
    ],
    "half a transaction in two tables": [
        RecordedOperation("transaction", 1, 2, writes={A: 1, ("u", 0): 1}),
        RecordedOperation("scan", 3, 4, reads={A: 1}),
        RecordedOperation("scan", 5, 6, reads={("u", 0): None}),
    ],
    "an update that is lost": [
        RecordedOperation("transaction", 1, 4, reads={A: None}, writes={A: 1}),
        RecordedOperation("transaction", 2, 3, reads={A: None}, writes={A: 2}),
    ],
}


@pytest.mark.parametrize("history", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_history_that_an_order_explains_is_accepted(history: list[RecordedOperation]) -> None:
    assert problem_of(history) is None


@pytest.mark.parametrize("history", REFUSED.values(), ids=REFUSED.keys())
def test_a_history_that_no_order_explains_is_refused(history: list[RecordedOperation]) -> None:
    assert problem_of(history) is not None


def is_explained(history: Sequence[RecordedOperation]) -> bool:
    """Tries all orders of all operations, with each choice of those without an answer that took effect."""
    answered = [each for each in history if each.end != FOREVER]
    open_ = [each for each in history if each.end == FOREVER]
    choices = chain.from_iterable(combinations(open_, count) for count in range(len(open_) + 1))
    return any(is_order(order) for choice in choices for order in permutations([*answered, *choice]))


def is_order(order: Sequence[RecordedOperation]) -> bool:
    state: dict[Key, Value] = {}
    for place, each in enumerate(order):
        if any(later.end < each.start for later in order[place + 1 :]):
            return False
        if any(state.get(key) != value for key, value in each.reads.items()):
            return False
        state |= each.writes
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[RecordedOperation]:
    """Draws up to six operations of three keys, with few values, so that many histories have an order."""
    history = []
    count = draw(st.integers(1, 6))
    ticks = draw(st.permutations(range(2 * count)))
    values = st.sampled_from([None, 1, 2])
    for number in range(count):
        start, end = sorted(ticks[2 * number : 2 * number + 2])
        rows = st.dictionaries(st.sampled_from(KEYS), values, min_size=1)
        kind = draw(st.sampled_from(["read", "write", "both"]))
        reads = draw(rows) if kind != "write" else {}
        writes = draw(rows) if kind != "read" else {}
        unanswered = kind != "read" and draw(st.integers(0, 3)) == 0
        history.append(RecordedOperation(kind, start, FOREVER if unanswered else end, reads, writes))
    return history


@given(histories())
@examples(300)
def test_the_search_agrees_with_trying_all_orders(history: list[RecordedOperation]) -> None:
    assert (problem_of(history) is None) == is_explained(history)


def long_history(rng: Random, count: int) -> list[RecordedOperation]:
    """Returns what up to six concurrent clients could have seen: operations that took effect one after another."""
    state: dict[Key, Value] = dict.fromkeys(KEYS)
    history = []
    for number in range(count):
        start, end = number - rng.uniform(0, 3), number + rng.uniform(0, 3)
        keys = rng.sample(KEYS, rng.randint(1, 3))
        reads = {key: state[key] for key in keys} if rng.random() < 0.6 else {}
        writes = {key: rng.choice([None, number, number]) for key in keys} if not reads or rng.random() < 0.2 else {}
        took_effect = True
        if not reads and rng.random() < 0.1:
            end, took_effect = FOREVER, rng.random() < 0.5
        history.append(RecordedOperation("operation", start, end, reads, writes))
        if took_effect:
            state |= writes
    return history


def stale_values(history: Sequence[RecordedOperation], read: RecordedOperation, key: Key) -> list[Value]:
    """Returns the values of a key that were certainly overwritten before a read began."""
    writes = [each for each in history if key in each.writes and each.end < read.start]
    last_start = max((each.start for each in writes), default=-FOREVER)
    return [each.writes[key] for each in writes if each.end < last_start and each.writes[key] is not None]


@seeds(3)
def test_a_long_history_is_accepted_and_one_with_a_stale_read_is_refused(seed: int) -> None:
    rng = Random(seed)
    history = long_history(rng, 400)
    assert problem_of(history) is None
    changed = 0
    for number in rng.sample(range(100, len(history)), 40):
        read = history[number]
        for key in read.reads:
            stale = replace(read, reads={**read.reads, key: rng.choice(stale_values(history, read, key)[-5:])})
            assert problem_of([*history[:number], stale, *history[number + 1 :]]) is not None
            changed += 1
    assert changed > 10


def test_operations_without_a_common_key_are_searched_for_separately() -> None:
    history = [upsert(1, 2, 1), upsert(1, 2, 1, B), get(3, 4, 1, B), upsert(1, 2, 1, C), transaction(3, 4, 2, 2)]
    assert sorted(len(part) for part in connected_parts(history)) == [1, 4]


def test_a_search_that_takes_too_long_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "MOST_POSITIONS", 3)
    with pytest.raises(UndecidedHistory, match="more than 3 positions"):
        problem_of([*(upsert(1, 9, value) for value in range(1, 6)), scan(10, 11, 1)])
