"""Random tables of all types that have an order: columns, key, indexes, and rows with unusual values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from tests.model.index_oracle import Answers, order_of, plain
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from random import Random

    from tests.model.index_oracle import Row

ORDERABLE = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    *(pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal128(4, -2), pa.decimal128(18, 0)),
    *(pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns")),
    # Frequent, since these types have no fixed width.
    *(pa.string(), pa.string(), pa.string(), pa.string(), pa.binary(), pa.binary(), pa.binary()),
]
_NAMES = ["score", "league", "Größe", "select", "a b", "x"]
_TEXTS = [
    "",
    "\x00",
    "\x00\x01",
    "a",
    "a\x00",
    "a\x00b",
    "ab",
    "ab\xff",
    "b",
    "é",
    "e\u0301",
    "ÿ",
    "\uffff",
    "\U0001f600",
]
_BYTES = [b"", b"\x00", b"\x00\x00", b"\x00\xff", b"\x00\x01", b"\x01", b"a", b"a\x00b", b"ab", b"\xff", b"\xff\xff"]
_FLOATS = [math.nan, -math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, -1.5, 2.0, 60000.0, 2.0**-24]
_INTEGERS = [0, 1, -1, 2, 7, 100, -100]
_PAYLOAD = pa.list_(pa.int32())


@dataclass
class RandomTable:
    """The definition of a random table, and the `steps` that write and delete its rows.

    Attributes:
        schema: The columns; the last one, `payload`, has no order.
        key: The key columns.
        bucket_key: Some of the key columns, or empty for all.
        buckets: 1 to 4.
        indexes: The columns of each index, without duplicates.
        values: For each column but the payload, its values and some others.
        steps: The writes in order: rows to upsert, or keys to delete.
    """

    schema: pa.Schema
    key: list[str]
    bucket_key: list[str]
    buckets: int
    indexes: list[tuple[str, ...]]
    values: dict[str, list[pa.Scalar]]
    steps: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)

    @classmethod
    def random(cls, random: Random, rows: int) -> RandomTable:
        """Returns a table with so many upserted rows, some with equal keys, and some deletions."""
        keys = [f"k{number}" for number in range(random.choice([0, 1, 1, 2]))]
        names = random.sample(_NAMES, random.randint(2, 4))
        types = {name: random.choice(ORDERABLE) for name in [*keys, *names]}
        if len(names) > 2:  # so that predicates can compare columns with each other
            types[names[0]] = types[names[1]]
        key = [*keys, "id"]
        random.shuffle(key)
        fields = [pa.field(name, type_, name in names and random.random() < 0.8) for name, type_ in types.items()]
        fields.append(pa.field("id", pa.int32(), nullable=False))
        random.shuffle(fields)
        schema = pa.schema([*fields, ("payload", _PAYLOAD)])
        # Few values, so that many rows are equal in some columns.
        values = {each.name: random.sample(every := odd_values(each.type), min(len(every), 4)) for each in fields}
        values["id"] = [pa.scalar(number, pa.int32()) for number in range(max(1, rows // 2))]
        indexes = {tuple(random.sample(names, size)) for size in (1, 1, 2, 2)}
        indexes |= {(random.choice(names), random.choice(key)), tuple(random.sample([*types, "id"], 3))}
        bucket_key = random.choice([[], [random.choice(key)]])
        table = cls(schema, key, bucket_key, random.choice([1, 2, 4]), sorted(indexes), values)
        table._fill(random, rows)
        for each in fields:
            values[each.name] = values[each.name] + random.sample(every := odd_values(each.type), min(len(every), 3))
        return table

    def answers(self) -> Answers:
        """Returns the contents of the table after all steps: the last row of each key."""
        empty = Answers(self.schema, self.key, [])
        kept: dict[Any, Row] = {}
        for what, batch in self.steps:
            for row in exact_rows(batch):
                order = empty.order_of_key(row)
                if what == "upsert":
                    kept[order] = row
                else:
                    kept.pop(order, None)
        return Answers(self.schema, self.key, map(self._as_stored, kept.values()))

    def keys_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the key columns of rows, in key order."""
        return batch.select(self.key)

    def _as_stored(self, row: Row) -> Row:
        """Normalizes zeros and NaNs in key columns, where floats have one zero and one NaN."""
        stored = list(row)
        for place, column in enumerate(self.schema):
            if column.name in self.key and pat.is_floating(column.type):
                width = column.type.bit_width
                nan = {16: 0x7E00, 32: 0x7FC00000, 64: 0x7FF8 << 48}[width]
                order = order_of(plain(column.type, row[place]))
                stored[place] = nan if order == (1, 0.0) else 0 if order == (0, 0.0) else row[place]
        return tuple(stored)

    def _fill(self, random: Random, rows: int) -> None:
        self.steps.append(("upsert", self._rows(random, rows)))
        self.steps.append(("upsert", self._rows(random, rows // 3)))
        self.steps.append(("delete", self._rows(random, rows // 8)))
        self.steps.append(("upsert", self._rows(random, rows // 8)))
        # Writes the rows once more, which changes nothing.
        self.steps.append(self.steps[-1])

    def _rows(self, random: Random, rows: int) -> pa.RecordBatch:
        arrays = []
        for column in self.schema:
            if column.name == "payload":
                lists = [[random.randrange(100)] * random.randrange(3) for _ in range(rows)]
                arrays.append(pa.array(lists, _PAYLOAD))
                continue
            nulls = [pa.scalar(None, column.type)] if column.nullable else []
            chosen = random.choices([*self.values[column.name], *nulls], k=rows)
            arrays.append(pa.array(chosen, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def odd_values(type_: pa.DataType) -> list[pa.Scalar]:
    """Returns limits, special values and ordinary values of a type, each once except for zeros and NaNs of floats."""
    if pat.is_string(type_) or pat.is_binary(type_):
        return [pa.scalar(value, type_) for value in (_TEXTS if pat.is_string(type_) else _BYTES)]
    if pat.is_boolean(type_):
        return [pa.scalar(False), pa.scalar(True)]
    if pat.is_floating(type_):
        return [pa.scalar(value, type_) for value in _FLOATS]
    if pat.is_decimal(type_):
        end = 10**type_.precision - 1
        return [_unscaled(number, type_) for number in {-end, end, *_INTEGERS, 1234, -1234}]
    if pat.is_integer(type_):
        low = 0 if pat.is_unsigned_integer(type_) else -(2 ** (type_.bit_width - 1))
        end = low + 2**type_.bit_width - 1
        numbers = {low, low + 1, end, end - 1, *_INTEGERS, 255, 256}
        return [pa.scalar(number, type_) for number in sorted(numbers) if low <= number <= end]
    if pat.is_time(type_):
        numbers = {0, 1, 2, 3600, 86_399}
    else:
        numbers = {-1000, -1, 0, 1, 2, 20_000, 20_001}
    carrier = pa.int32() if type_.bit_width == 32 else pa.int64()
    return [pa.scalar(number, carrier).cast(type_) for number in sorted(numbers)]


def _unscaled(number: int, type_: pa.Decimal128Type) -> pa.Scalar:
    data = number.to_bytes(16, "little", signed=True)
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(data)])[0]
