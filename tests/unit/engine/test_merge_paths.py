"""Few rows are merged as Python values and many rows as columns, with equal results: for all types, engines, functions.

The types, engines, functions and change types are those that the product lists, so that a new one is tested or fails.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pytest

from scankv.model.changes.change_columns import CHANGE_SYMBOLS
from scankv.model.errors import InvalidRequest, RequestTooLarge, ScanKvError, SchemaMismatch
from scankv.model.rows.row_values import NotExactError
from scankv.model.tables import agg
from scankv.model.tables.merge_functions import FUNCTIONS
from scankv.model.tables.merge_spec import PARTIAL_ENGINES
from scankv.model.tables.options import MERGE_ENGINES
from scankv.model.types.types import is_key_type, is_storable, storable_type
from streaming_server.engine.merging.few_rows import FewRows, change_few
from streaming_server.engine.merging.merger import Merger
from streaming_server.engine.merging.outcome import combine_changes, merge_delete, merge_upsert
from streaming_server.engine.merging.prepared_rows import PreparedRows, prepare
from streaming_server.engine.merging.preparing import WriteKind, group_by_key, prepare_delete, prepare_upsert
from streaming_server.engine.merging.reading_few import replaces_rows
from streaming_server.storage.rows.table_codec import TableCodec
from tests.support.examples import FACTOR
from tests.support.merged_table import assert_same_change, merging_table
from tests.support.type_samples import NOT_STORABLE, OTHER_LAYOUTS, samples, type_id_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scankv.model.tables.schema import TableDefinition
    from streaming_server.engine.merging.few_rows import BucketRows
    from streaming_server.storage.bucket.bucket_change import BucketChange

SAMPLES: Final = samples()

# Their inputs are serialized by a library. They have no fold, so few rows are merged as columns.
SKETCHES: Final = ("rbm32", "rbm64", "hll_sketch", "theta_sketch", "top_k")
REFUSING: Final = ("sum", "product", "avg", "count")
"""Functions of which a result may not fit. Refused rows are written one by one, which takes long for many."""


def test_every_type_that_arrow_has_is_sampled_or_refused() -> None:
    sampled = {type_.id for type_ in SAMPLES}
    for number, name in type_id_names().items():
        if name in OTHER_LAYOUTS or name in NOT_STORABLE:
            assert number not in sampled
        else:
            assert number in sampled, f"samples() has no type {name}"
    assert all(is_storable(type_) for type_ in SAMPLES)
    for width in (pa.decimal32, pa.decimal64, pa.decimal256):
        assert storable_type(width(9, 4)) == pa.decimal128(9, 4)


@dataclass(frozen=True, slots=True)
class MergeCase:
    """A table whose rows are merged on both paths.

    Attributes:
        name: What it tests, for its name.
        options: Arguments of `merging_table`.
    """

    name: str
    options: dict[str, Any]


def cases(type_: pa.DataType) -> Iterator[MergeCase]:
    """Yields the tables with a column `v` of a type, and, if it has an order, with `at` of the same type."""
    orders = is_key_type(type_)
    functions = [name for name, rules in FUNCTIONS.items() if rules.takes(type_) and name not in SKETCHES]
    yield MergeCase("last_row", {})
    # Each type has one of the others, because the values do not depend on it.
    changelog = ("upsert", "none", "input")[list(SAMPLES).index(type_) % 3]
    yield MergeCase(f"last_row, {changelog}", {"changelog": changelog})
    yield MergeCase("first_row", {"merge_engine": "first_row"})
    yield MergeCase("partial_update", {"merge_engine": "partial_update"})
    if orders:
        yield MergeCase("sequence", {"sequence": ["at"]})
        yield MergeCase("two sequences", {"sequence": ["n", "at"]})
        yield MergeCase("versioned", {"merge_engine": "versioned", "version_column": "at"})
        groups = [(["at"], ["v"])]
        yield MergeCase("group", {"merge_engine": "partial_update", "groups": groups})
        groups = [(["n", "at"], ["v"])]
        yield MergeCase("group of two", {"merge_engine": "partial_update", "groups": groups})
        for name in functions:
            yield MergeCase(
                f"group, {name}",
                {"merge_engine": "partial_update", "groups": [(["at"], ["v"])], "aggregates": {"v": _function(name)}},
            )
    for name in functions:
        yield MergeCase(f"aggregate, {name}", {"merge_engine": "aggregate", "aggregates": {"v": _function(name)}})


def _function(name: str) -> agg.Aggregator:
    function: agg.Aggregator = getattr(agg, name)()
    return function


def table_of(type_: pa.DataType, case: MergeCase) -> TableDefinition:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int8()), ("at", type_), ("v", type_)])
    if not is_key_type(type_):
        schema = schema.remove(2)
    options = dict(case.options)
    if options.get("merge_engine") in (None, "aggregate") and not options.get("sequence"):
        options["delete_behavior"] = "allow"
    indexes = [("v",)] if is_key_type(type_) and options.get("changelog") is None else []
    return merging_table(schema, indexes=indexes, **options)


class MergedSide:
    """The rows of one bucket, which are merged on one of the paths: `StoredRows`."""

    def __init__(self, definition: TableDefinition) -> None:
        self.merger = Merger.of(TableCodec.of(definition), {})
        self.stored: dict[bytes, bytes] = {}

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """See `StoredRows`."""
        return [self.stored.get(key) for key in keys]

    def has_rows_among(self, keys: list[bytes]) -> bool:
        """See `StoredRows`."""
        return True

    def apply(self, rows: BucketRows) -> BucketChange | ScanKvError:
        """Merges rows. Returns their change, or why they are refused."""
        try:
            change = self.merger.merge(self, rows)
        except (InvalidRequest, RequestTooLarge) as error:
            return error
        self.stored |= zip(change.put_keys.to_pylist(), change.put_values.to_pylist(), strict=True)
        for key in change.delete_keys.to_pylist():
            self.stored.pop(key, None)
        return change


class TwoPaths:
    """A table that is merged as the server does it, and the same one, merged as columns only."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.served, self.columns = MergedSide(definition), MergedSide(definition)

    @property
    def has_two(self) -> bool:
        """Whether few rows are not merged as columns."""
        merger = self.served.merger
        return merger.codec.single is not None and merger.engines.row_merge is not None

    def write(self, rows: pa.RecordBatch, *, are_few: bool = False) -> None:
        """Writes complete rows to both."""
        codec = self.columns.merger.codec
        columns: Sequence[BucketRows] = (
            prepare(rows, codec, keys_only=False)
            if replaces_rows(self.definition)
            else group_by_key(rows, codec, None, None, overwrite=False)
        )
        few = prepare_upsert(rows, self.served.merger, WriteKind())
        assert not are_few or all(isinstance(each, FewRows) for each in few)
        self._write(few, columns)

    def delete(self, keys: pa.RecordBatch) -> None:
        """Deletes rows of both, if the table has deletes."""
        if self.definition.options.deletes == "allow":
            few = prepare_delete(keys, self.served.merger.codec, WriteKind())
            self._write(few, prepare(keys, self.columns.merger.codec, keys_only=True))

    def write_columns(self, rows: pa.RecordBatch, kind: WriteKind, change_types: Sequence[str] | None = None) -> None:
        """Writes rows that are always merged as columns, which few rows meet later. A table may refuse them."""
        types = None if change_types is None else pa.array(change_types, pa.string())
        try:
            parts = prepare_upsert(rows, self.served.merger, kind, types)
        except (InvalidRequest, SchemaMismatch):
            return
        self._write(parts, [each.prepare() if isinstance(each, FewRows) else each for each in parts])

    def _write(self, served: Sequence[BucketRows], columns: Sequence[BucketRows]) -> None:
        for few, many in zip(served, columns, strict=True):
            assert not isinstance(many, FewRows)
            before = dict(self.columns.stored)
            one, other = self.served.apply(few), self.columns.apply(many)
            if isinstance(one, ScanKvError) or isinstance(other, ScanKvError):
                assert (type(one), str(one)) == (type(other), str(other))
                if len(few.key_list) > 1:
                    self._write_halves(few, many)
                continue
            assert_same_change(one, other)
            assert self.served.stored == self.columns.stored
            self._check_transaction(before)

    def _write_halves(self, few: BucketRows, many: BucketRows) -> None:
        """Writes those keys of refused rows that are not refused."""
        half = len(few.key_list) // 2
        for start, count in ((0, half), (half, len(few.key_list) - half)):
            self._write([few.slice(start, count)], [many.slice(start, count)])

    def _check_transaction(self, before: dict[bytes, bytes]) -> None:
        """Compares what few and many keys change when a transaction replaces their rows, which are merged already."""
        codec, after = self.served.merger.codec, self.columns.stored
        if codec.single is None or (self.definition.options.merge_engine != "last_row" and not codec.rows.hidden):
            return
        put = [key for key, row in after.items() if before.get(key) != row]
        gone = [key for key in before if key not in after]
        keys = [*put, *gone]
        old, new = [before.get(key) for key in keys], [after.get(key) for key in keys]
        try:
            few = change_few(keys, old, new, codec)
        except NotExactError:
            return
        rows = codec.rows.decoder().decode(pa.array([after[key] for key in put], pa.binary()))
        values = pa.array([after[key] for key in put], pa.binary())
        indexes = codec.indexes.values()
        many = merge_upsert(
            [before.get(key) for key in put],
            PreparedRows(0, codec.rows, rows, pa.array(put, pa.binary()), values),
            row_deduplicate=self.definition.options.row_deduplicate,
            indexes=indexes,
        )
        if gone:
            lost: list[bytes | None] = [before[key] for key in gone]
            key_rows = codec.rows.decoder(("k",)).decode(pa.array(lost, pa.binary()))
            deleted = PreparedRows(0, codec.rows, key_rows, pa.array(gone, pa.binary()), None)
            many = combine_changes(many, merge_delete(lost, deleted, indexes))
        assert_same_change(few, many)


def batch_of(
    definition: TableDefinition, keys: Sequence[int], values: pa.Array, small: Sequence[int]
) -> pa.RecordBatch:
    """Returns rows that have the values in all columns of their type."""
    columns = {"k": pa.array(keys, pa.int64()), "n": pa.array(small, pa.int8())}
    schema = definition.schema.arrow
    return pa.RecordBatch.from_arrays([columns.get(name, values) for name in schema.names], schema=schema)


def is_python(value: pa.Scalar) -> bool:
    """Whether Python has a value. Rows with other values are merged as columns."""
    try:
        value.as_py()
    except (ValueError, OverflowError):
        return False
    return True


def write_all_pairs(table: TwoPaths, values: pa.Array) -> None:
    """Writes each value, and null, over each other one."""
    values = values.filter(pa.array([is_python(value) for value in values]))
    functions = {each.function for each in table.definition.merging.aggregates}
    if not functions.isdisjoint(REFUSING) and len(values) > 4:
        values = pa.concat_arrays([values[:1], values[2:4], values[-1:]])
    values = pa.concat_arrays([pa.nulls(1, values.type), values])
    pairs = np.array(list(product(range(len(values)), repeat=2)))
    for column in (0, 1):
        taken = values.take(pa.array(pairs[:, column]))
        table.write(batch_of(table.definition, range(len(pairs)), taken, [0] * len(pairs)), are_few=True)


def write_at_random(table: TwoPaths, values: pa.Array, random_: random.Random, writes: int) -> None:
    """Writes some rows in some of the ways that there are."""
    values = pa.concat_arrays([pa.nulls(1, values.type), values])
    names = table.definition.schema.arrow.names
    for _ in range(writes):
        count = random_.randint(1, 6)
        keys = [random_.randint(0, 2) for _ in range(count)]
        rows = batch_of(
            table.definition,
            keys,
            values.take(pa.array([random_.randrange(len(values)) for _ in range(count)])),
            [random_.randint(-1, 1) for _ in range(count)],
        )
        match random_.randrange(6):
            case 0:
                table.delete(rows.select(["k"]))
            case 1:
                columns = ["k", *random_.sample(names[1:], random_.randint(1, len(names) - 1))]
                kept = [name for name in names if name in columns]
                if kept == names or not {*table.definition.merging.sequence_columns} <= {*kept}:
                    continue
                if table.definition.options.merge_engine in PARTIAL_ENGINES:
                    table.write_columns(rows.select(kept), WriteKind(columns=tuple(kept)))
            case 2:
                table.write_columns(rows, WriteKind(), [random_.choice(CHANGE_SYMBOLS) for _ in range(count)])
            case 3:
                table.write_columns(rows, WriteKind(overwrite=True))
            case _:
                table.write(rows)


@pytest.mark.seeds
@pytest.mark.parametrize("type_", SAMPLES, ids=str)
@pytest.mark.represented_by("map<string, int64>")
def test_few_rows_and_many_are_merged_alike(type_: pa.DataType) -> None:
    for number, case in enumerate(cases(type_)):
        definition = table_of(type_, case)
        table, values = TwoPaths(definition), SAMPLES[type_]
        try:
            if table.has_two:
                write_all_pairs(table, values)
            write_at_random(table, values, random.Random(number), 2 * FACTOR)
        except Exception as error:
            error.add_note(f"{type_}: {case.name}")
            raise


def test_every_merge_engine_and_function_is_compared() -> None:
    every = [case.options for type_ in SAMPLES for case in cases(type_)]
    assert {options.get("merge_engine", "last_row") for options in every} == {*MERGE_ENGINES}
    functions = {each.function for options in every for each in options.get("aggregates", {}).values()}
    assert functions == {*FUNCTIONS} - {*SKETCHES}
