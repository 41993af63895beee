"""Key ranges given by values contain exactly the keys between them, and invalid values are refused."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio_client import InvalidKey, ScanSpec, UsageError, sync
from aio_client._input.key_bounds import Inclusive, range_between, range_of_prefix
from aio_client._scan.scan import Scan
from aio_client._scan.shards import ScannedTable
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = pa.schema([pa.field("s", pa.string(), nullable=False), pa.field("n", pa.int16(), nullable=False)])
CODEC = KeyCodec(KEY.types, KEY.names)
TEXTS = st.sampled_from(["", "a", "a\0", "ab", "b", "b\uffff"])
NUMBERS = st.sampled_from([-(2**15), -1, 0, 1, 2**15 - 1])
ENDS = st.none() | TEXTS | st.tuples(TEXTS) | st.tuples(TEXTS, NUMBERS)
WHOLE = [
    (text, number) for text in ("", "a", "a\0", "ab", "b", "b\uffff") for number in (-(2**15), -1, 0, 1, 2**15 - 1)
]


def parts(end: object) -> tuple[object, ...]:
    """Returns the values of a bound, with text as bytes, so that they compare as keys do."""
    values = end if isinstance(end, tuple) else (end,)
    return tuple(part.encode() if isinstance(part, str) else part for part in values)


def leading(key: object, end: object) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Returns as many leading values of a key as the bound has, and the bound."""
    return parts(key)[: len(parts(end))], parts(end)


@given(ENDS, ENDS, st.sampled_from(get_args(Inclusive)))
@examples(20)
def test_a_range_holds_the_keys_between_its_ends(start: object, end: object, inclusive: Inclusive) -> None:
    above = operator.ge if inclusive in ("both", "left") else operator.gt
    below = operator.le if inclusive in ("both", "right") else operator.lt
    try:
        found = range_between(start, end, inclusive, KEY)
    except UsageError:
        first, last = zip(*zip(parts(start), parts(end), strict=False), strict=True)
        assert first > last
        return
    for key in WHOLE:
        expected = (start is None or above(*leading(key, start))) and (end is None or below(*leading(key, end)))
        assert (CODEC.encode_one(key) in found) is expected, key


@given(TEXTS | st.tuples(TEXTS) | st.tuples(TEXTS, NUMBERS))
def test_a_prefix_holds_the_keys_that_begin_with_it(prefix: object) -> None:
    found = range_of_prefix(prefix, KEY)
    values = prefix if isinstance(prefix, tuple) else (prefix,)
    for key in WHOLE:
        expected = key == values if len(values) == 2 else key[0].startswith(values[0])
        assert (CODEC.encode_one(key) in found) is expected, key


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda scan: scan.key_range((None, 1)), "null"),
        (lambda scan: scan.key_range(("a", None)), "null"),
        (lambda scan: scan.key_range(end=("a", 2**15)), "n"),
        (lambda scan: scan.key_range(5), "s"),
        (lambda scan: scan.key_range(("a", 1, 2)), "leading columns of the key"),
        (lambda scan: scan.key_range(()), "leading columns of the key"),
        (lambda scan: scan.prefix(None), "null"),
        (lambda scan: scan.prefix(("a", None)), "null"),
    ],
)
@pytest.mark.parametrize("kind", [Scan, sync.Scan])
def test_what_is_no_key_is_refused(kind: type[Scan], ask: Callable[[Scan], Scan], message: str) -> None:
    with pytest.raises(InvalidKey, match=message):
        ask(kind(None, ScanSpec("a.b"), ScannedTable(KEY, 4)))  # type: ignore[arg-type]  # nothing is called


@pytest.mark.parametrize("kind", [Scan, sync.Scan])
def test_ranges_are_joined_by_and_and_survive_other_refinements(kind: type[Scan]) -> None:
    scan = kind(None, ScanSpec("a.b"), ScannedTable(KEY, 4))  # type: ignore[arg-type]  # nothing is called
    both = scan.key_range("a", "c").limit(5).ordered().key_range(end="b", inclusive="neither").prefix("ab")
    assert both.spec.key_range == KeyRange(b"ab", b"ac")
    assert (both.spec.limit, both.spec.ordered) == (5, True)
    assert scan.key_range("a", "a").prefix("b").spec.key_range is not None
    assert scan.key_range("a", "a").prefix("b").spec.key_range.is_empty  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [Scan, sync.Scan])
def test_a_reversed_range_and_a_spec_alone_are_refused(kind: type[Scan]) -> None:
    scan = kind(None, ScanSpec("a.b"), ScannedTable(KEY, 4))  # type: ignore[arg-type]  # nothing is called
    with pytest.raises(UsageError, match="start of the key range is greater than its end"):
        scan.key_range("b", "a")
    with pytest.raises(UsageError, match="start of the key range is greater than its end"):
        scan.key_range(("b", 1), "a")
    with pytest.raises(UsageError, match="inclusive must be both or left or right or neither"):
        scan.key_range("a", "b", inclusive="all")  # type: ignore[arg-type]
    alone = kind(None, ScanSpec("a.b"))  # type: ignore[arg-type]  # nothing is called
    with pytest.raises(UsageError, match=r"key_range needs the types of the key.*table\.scan\(\)"):
        alone.key_range("a")
    with pytest.raises(UsageError, match=r"prefix needs the types of the key.*table\.scan\(\)"):
        alone.prefix("a")
