"""Random tables, rows and keys, from few enough keys and values that they repeat, with unusual ones among them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

if TYPE_CHECKING:
    from random import Random

REGIONS = ["", "\x00", "\x00\x01", "a", "a\x00", "a\x00b", "ab", "b", "\u00ff", "\uffff", "\U0001f600", "long " * 50]
NUMBERS = [-(2**63), -256, -1, 0, 1, 2, 255, 256, 2**63 - 1]

_STEP = pa.struct([pa.field("number", pa.int16(), nullable=False), ("done", pa.list_(pa.bool_()))])
SCHEMA = pa.schema(
    [
        ("score", pa.int64()),
        pa.field("region", pa.string(), nullable=False),
        ("weight", pa.float64()),
        ("title", pa.string()),
        pa.field("number", pa.int64(), nullable=False),
        ("price", pa.decimal128(12, 2)),
        ("seen", pa.timestamp("us", "UTC")),
        pa.field("version", pa.int32(), nullable=False),
        ("raw", pa.binary()),
        ("alive", pa.bool_()),
        ("steps", pa.list_(_STEP)),
        ("limits", pa.map_(pa.string(), pa.int64())),
    ]
)
ADDED = (
    pa.schema([("day", pa.date32()), ("first", _STEP)]),
    pa.schema([("ratio", pa.float32()), ("words", pa.list_(pa.string()))]),
)
"""Columns that a history adds."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [False, True],
    pa.int16(): [-(2**15), 0, 2**15 - 1],
    pa.int32(): [-(2**31), 0, 7, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.float32(): [float("nan"), float("inf"), -0.0, 0.0, 0.5],
    pa.float64(): [float("nan"), float("-inf"), -0.0, 0.0, 1e300],
    pa.string(): ["", "\x00", "\U0001f600", "text", "long " * 100],
    pa.binary(): [b"", b"\x00", b"\xff" * 40],
    pa.decimal128(12, 2): [Decimal("-9999999999.99"), Decimal("0.00"), Decimal("12.50")],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [_EPOCH, _EPOCH + dt.timedelta(microseconds=1), _EPOCH - dt.timedelta(days=40_000)],
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The arguments of `create_table` for a random table, besides its columns."""

    primary_key: list[str]
    bucket_key: list[str]
    buckets: int
    options: dict[str, Any]

    @property
    def partitioned(self) -> dict[str, Any]:
        """More arguments: of a partitioned table whose rows expire decades after their last write."""
        return {"partition_by": self.primary_key[:1], "ttl_seconds": 2_000_000_000}

    @classmethod
    def random(cls, random: Random) -> Layout:
        """Returns a layout with a key of two columns."""
        key = random.choice([["region", "number"], ["number", "region"]])
        return cls(
            primary_key=key,
            bucket_key=random.choice([[], ["region"], ["number"]]),
            buckets=random.choice([1, 3, 4]),
            options={
                "row_deduplicate": random.random() < 0.75,
                "compression": random.choice(["none", "lz4", "zstd"]),
            },
        )


def random_key(random: Random, key: list[str]) -> tuple[Any, ...]:
    """Returns a key in key order."""
    return tuple(random.choice(REGIONS if name == "region" else NUMBERS) for name in key)


def random_row(random: Random, schema: pa.Schema) -> dict[str, Any]:
    """Returns a row with nulls in some of its nullable columns."""
    keys: dict[str, Any] = {"region": random.choice(REGIONS), "number": random.choice(NUMBERS)}
    return {field.name: _value(random, field) for field in schema} | keys


def _value(random: Random, field: pa.Field) -> Any:
    type_ = field.type
    if field.nullable and random.random() < 0.2:
        return None
    if pat.is_struct(type_):
        return {child.name: _value(random, child) for child in type_.fields}
    if pat.is_list(type_):
        return [_value(random, type_.value_field) for _ in range(random.randrange(3))]
    if pat.is_map(type_):
        keys = random.sample(_VALUES[type_.key_type], random.randrange(3))
        return [(key, _value(random, type_.item_field)) for key in keys]
    return random.choice(_VALUES[type_])
