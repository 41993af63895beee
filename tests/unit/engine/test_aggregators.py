"""Every aggregator on every type, for all short series of inputs and nulls, added and retracted."""

from __future__ import annotations

import datetime
import itertools
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
import pytest

from scankv.model.errors import InvalidRequest, SchemaMismatch
from scankv.model.tables import agg
from scankv.model.tables.agg import Aggregator
from scankv.model.tables.merge_functions import FUNCTIONS
from scankv.model.types.types import format_type
from tests.support.merge_model import Function, RefusedError
from tests.support.merged_table import MergedTable, merging_table, replayed

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal128(5, 5)]
NUMBERS = [*INTEGERS, *FLOATS, *DECIMALS]
TEXTS = [pa.string(), pa.binary()]
TIMES = [pa.date32(), pa.time32("s"), pa.time64("us"), pa.timestamp("ms"), pa.timestamp("us", "UTC")]
LISTS = [pa.list_(pa.int8()), pa.list_(pa.string()), pa.list_(pa.float64()), pa.list_(pa.list_(pa.int8()))]
MAPS = [pa.map_(pa.string(), pa.int8()), pa.map_(pa.int8(), pa.list_(pa.string()))]
STRUCTS = [pa.struct([("a", pa.int8()), ("b", pa.string())])]
ANY = [*NUMBERS, pa.bool_(), *TEXTS, *TIMES, *LISTS, *MAPS, *STRUCTS]
ORDERED = [*NUMBERS, pa.bool_(), *TEXTS, *TIMES]
TAKES: dict[str, list[pa.DataType]] = {
    "sum": NUMBERS,
    "product": NUMBERS,
    "count": INTEGERS,
    "avg": NUMBERS,
    "min": ORDERED,
    "max": ORDERED,
    "last_value": ANY,
    "last_non_null_value": ANY,
    "first_value": ANY,
    "first_non_null_value": ANY,
    "listagg": [pa.string()],
    "bool_and": [pa.bool_()],
    "bool_or": [pa.bool_()],
    "collect": LISTS,
    "merge_map": MAPS,
}
RETRACTS = {"sum", "product", "count", "avg", "last_value", "last_non_null_value", "collect", "merge_map"}
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "listagg": [{}, {"delimiter": "; "}, {"distinct": True}, {"delimiter": "b", "distinct": True}],
    "collect": [{}, {"distinct": True}],
}
CASES = [
    pytest.param(name, type_, parameters, id=f"{name}-{format_type(type_)}-{'-'.join(parameters)}")
    for name, types in TAKES.items()
    for type_ in types
    for parameters in [*PARAMETERS.get(name, [{}]), *([{"ignore_retract": True}] if type_ is types[0] else [])]
]
EVENTS = 4


def samples(type_: pa.DataType) -> list[Any]:
    """Returns two values of a type."""
    day, noon = datetime.date(2020, 2, 29), datetime.time(12, 30)
    if pat.is_floating(type_):
        return [pa.scalar(value, type_).as_py() for value in (1.1, -2.7)]
    found: dict[str, list[Any]] = {
        "decimal128(10, 2)": [Decimal("1.25"), Decimal("-3.10")],
        "decimal128(38, 0)": [Decimal(10**20), Decimal(-3)],
        "decimal128(5, 5)": [Decimal("0.00125"), Decimal("0.31000")],
        "bool": [True, False],
        "string": ["ab", "b,a"],
        "binary": [b"a", b"\xff"],
        "date32[day]": [day, datetime.date(1969, 1, 1)],
        "time32[s]": [noon, datetime.time(1)],
        "time64[us]": [noon, datetime.time(1, 0, 0, 5)],
        "timestamp[ms]": [datetime.datetime(2020, 2, 29), datetime.datetime(1960, 1, 1)],
        "timestamp[us, tz=UTC]": [datetime.datetime(2020, 2, 29, tzinfo=datetime.UTC)] * 2,
        "list<item: int8>": [[1, None, 1], [2, 1]],
        "list<item: string>": [["a", "b", "a"], []],
        "list<item: double>": [[1.5, math.inf], [1.5, None]],
        "list<item: list<item: int8>>": [[[1], None, []], [[], [1]]],
        "map<string, int8>": [[("a", 1), ("b", None)], [("b", 2), ("c", 3)]],
        "map<int8, list<item: string>>": [[(1, ["x"]), (2, None)], [(1, [])]],
        "struct<a: int8, b: string>": [{"a": 1, "b": None}, {"a": None, "b": "x"}],
    }
    return found.get(format_type(type_), [3, 5])


def all_series(name: str, values: list[Any], *, taken_back: bool) -> list[list[tuple[str, Any]]]:
    kinds = ["+I", "-D"] if taken_back else ["+I"]
    return [list(each) for each in itertools.product(itertools.product(kinds, [None, *values]), repeat=EVENTS - 1)] + [
        [("+I", value)] * EVENTS for value in values
    ]


@pytest.mark.parametrize(("name", "type_", "parameters"), CASES)
@pytest.mark.represented_by("sum-int8-", "max-int32-", "first_value-int8-", "merge_map-map<int8, list<item: string>>-")
def test_a_function_gives_what_the_model_says_however_its_inputs_are_cut_into_batches(
    name: str, type_: pa.DataType, parameters: dict[str, Any]
) -> None:
    function = Function(name, type_, **parameters)
    taken_back = name in RETRACTS or bool(parameters.get("ignore_retract"))
    expected: dict[int, Any] = {}
    series: dict[int, list[tuple[str, Any]]] = {}
    for events in all_series(name, samples(type_), taken_back=taken_back):
        value = hidden = None
        try:
            for kind, each in events:
                value, hidden = function.fold(value, hidden, each, back=kind == "-D")
        except RefusedError:
            continue
        key = len(series)
        series[key], expected[key] = events, value
    schema = pa.schema([("k", pa.int32()), ("v", type_)])
    definition = merging_table(schema, aggregates={"v": getattr(agg, name)(**parameters)}, merge_engine="aggregate")
    for cuts in [(EVENTS,), (1,) * EVENTS, (1, 3), (2, 2)]:
        table, first = MergedTable(definition), 0
        for size in cuts:
            rows = [
                ({"k": key, "v": value}, kind)
                for key, events in series.items()
                for kind, value in events[first : first + size]
            ]
            first += size
            if rows:
                table.write([row for row, _ in rows], [kind for _, kind in rows])
        rows_found = table.rows()
        found = {key: row["v"] for key, row in rows_found.items()}
        plain = {key: None if value is None else pa.scalar(value, type_).as_py() for key, value in expected.items()}
        assert {key: repr(value) for key, value in found.items()} == {key: repr(v) for key, v in plain.items()}
        if cuts == (1, 3):
            followed = replayed(table.log, "k")
            assert repr(sorted(followed.items())) == repr(sorted(rows_found.items()))


@pytest.mark.parametrize("name", sorted(set(TAKES) - RETRACTS))
def test_a_function_that_cannot_take_back_refuses_to(name: str) -> None:
    type_ = TAKES[name][0]
    schema = pa.schema([("k", pa.int32()), ("v", type_), ("other", pa.int8())])
    table = MergedTable(merging_table(schema, aggregates={"v": getattr(agg, name)()}, merge_engine="aggregate"))
    row = {"k": 1, "v": None, "other": 1}
    table.write([row])
    with pytest.raises(InvalidRequest, match=f'column "v": {name} cannot retract a value') as caught:
        table.write([row], ["-D"])
    assert caught.value.details["column"] == "v"
    table.write([row], ["-U"], ["k", "other"])


@pytest.mark.parametrize(
    ("name", "type_"),
    [(name, type_) for name, rules in FUNCTIONS.items() for type_ in ANY if not rules.takes(type_)],
    ids=str,
)
def test_a_function_of_a_type_that_it_does_not_take_is_refused(name: str, type_: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=f'column "v" is .*, which {name} does not take') as caught:
        merging_table(
            pa.schema([("k", pa.int8()), ("v", type_)]),
            aggregates={"v": Aggregator(name)},
            merge_engine="aggregate",
        )
    assert caught.value.details["column"] == "v"
    assert type_ not in TAKES.get(name, [])


@pytest.mark.parametrize("type_", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["sum", "product", "count"])
def test_an_integer_that_does_not_fit_is_refused_with_column_and_key_and_one_that_just_does_is_not(
    name: str, type_: pa.DataType
) -> None:
    bits = type_.bit_width - pat.is_signed_integer(type_)
    most = 2**bits - 1
    schema = pa.schema([("k", pa.string()), ("v", type_)])
    table = MergedTable(merging_table(schema, aggregates={"v": getattr(agg, name)()}, merge_engine="aggregate"))
    table.write(
        [{"k": "fits", "v": most - 1}, {"k": "over", "v": most}, {"k": "half", "v": 2 ** (bits - 2)}], overwrite=True
    )
    more = {"sum": 1, "product": 1, "count": 1}[name]
    table.write([{"k": "fits", "v": more}])
    assert table.rows()["fits"]["v"] == (most - 1 if name == "product" else most)
    before = dict(table.stored)
    with pytest.raises(InvalidRequest, match=r'column "v", key \(over\)') as caught:
        table.write([{"k": "half", "v": 1}, {"k": "over", "v": 2}])
    assert caught.value.details["column"] == "v"
    assert caught.value.details["key"] == "over"
    assert table.stored == before
    if pat.is_signed_integer(type_) and name == "sum":
        table.write([{"k": "low", "v": -most}, {"k": "low", "v": -1}])
        with pytest.raises(InvalidRequest):
            table.write([{"k": "low", "v": -1}])


@pytest.mark.parametrize("name", ["sum", "product", "avg"])
def test_a_decimal_that_does_not_fit_is_refused(name: str) -> None:
    schema = pa.schema([("k", pa.int8()), ("v", pa.decimal128(38, 2))])
    table = MergedTable(merging_table(schema, aggregates={"v": getattr(agg, name)()}, merge_engine="aggregate"))
    most = Decimal(10**36 - 1)
    table.write([{"k": 1, "v": most}])
    with pytest.raises(InvalidRequest, match='column "v", key'):
        table.write([{"k": 1, "v": most}])
    assert table.rows()[1]["v"] == most


def test_nan_is_above_all_numbers_and_minus_zero_is_zero() -> None:
    schema = pa.schema([("k", pa.int8()), ("low", pa.float32()), ("high", pa.float32())])
    table = MergedTable(
        merging_table(schema, aggregates={"low": agg.min(), "high": agg.max()}, merge_engine="aggregate")
    )
    for value in (math.inf, math.nan, -0.0, 0.0):
        table.write([{"k": 1, "low": value, "high": value}])
    assert repr(table.rows()[1]["low"]) == "0.0"
    assert math.isnan(table.rows()[1]["high"])
