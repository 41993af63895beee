"""How keys divide into partitions, and when partitions expire."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scankv.model.errors import InvalidKey, InvalidOption
from scankv.model.keys.key_codec import KeyCodec
from scankv.model.keys.key_range import KeyRange
from scankv.model.tables.partition_ttl import CalendarPeriod, partition_rule
from scankv.model.tables.partitioning import PartitionDrop, Partitioning

TYPES = {
    "flag": (pa.bool_(), st.booleans()),
    "number": (pa.uint8(), st.integers(0, 255)),
    "day": (pa.date32(), st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))),
    "text": (pa.string(), st.text("\0\1a\xff", max_size=4)),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "time": (pa.timestamp("us"), st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))),
}


@given(st.lists(st.sampled_from([*TYPES]), min_size=1, max_size=3, unique=True), st.data())
def test_the_partition_of_a_key_is_what_its_first_columns_encode_to(names: list[str], data: st.DataObject) -> None:
    partitioning = Partitioning(names, [TYPES[name][0] for name in names])
    values = data.draw(st.lists(st.tuples(*(TYPES[name][1] for name in names)), min_size=1, max_size=6))
    columns = [pa.array([row[place] for row in values], TYPES[name][0]) for place, name in enumerate(names)]
    codec = KeyCodec([*partitioning.types, pa.int32()])
    keys = codec.encode([*columns, pa.array(range(len(values)), pa.int32())])
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in values]
    prefixes = [partitioning.encode(row) for row in rows]
    assert partitioning.prefixes(keys).to_pylist() == prefixes
    assert partitioning.prefixes(keys.slice(1)).to_pylist() == prefixes[1:]
    assert [partitioning.prefix_of(key) for key in keys.to_pylist()] == prefixes
    assert [partitioning.decode(prefix) for prefix in prefixes] == rows
    for prefix in prefixes:
        partitioning.check(prefix, complete=True)
        within = [key in KeyRange.under(prefix) for key in keys.to_pylist()]
        assert within == [other == prefix for other in prefixes]


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(2_932_897, pa.date32()),
        pa.scalar(-800_000, pa.date32()),
        pa.scalar(2**62, pa.timestamp("us")),
        pa.scalar(2**62, pa.timestamp("s", "UTC")),
        pa.scalar(1, pa.time64("ns")),
    ],
    ids=lambda value: str(value.type),
)
def test_a_partition_of_a_time_that_python_does_not_have_is_an_arrow_scalar(value: pa.Scalar) -> None:
    partitioning = Partitioning(["time"], [value.type])
    name = partitioning.encode({"time": value})
    assert partitioning.decode(name) == {"time": value}
    assert partitioning.encode(partitioning.decode(name)) == name
    partitioning.check(name, complete=True)
    if not pa.types.is_time(value.type):
        rule = partition_rule("1 day", "time", "", partitioning)
        assert rule is not None
        assert rule.expiry_of(partitioning.decode(name)) is None


@given(st.binary(max_size=12))
def test_other_bytes_name_no_partition(name: bytes) -> None:
    partitioning = Partitioning(["flag", "text"], [pa.bool_(), pa.string()])
    try:
        partitioning.check(name, complete=False)
    except InvalidKey:
        return
    assert partitioning.encode(partitioning.decode(name)) == name


def test_a_drop_is_stored_in_the_definition() -> None:
    drop = PartitionDrop(3, (b"\0a", b"\xff"))
    assert PartitionDrop.from_json(drop.to_json()) == drop
    assert drop.ranges == (KeyRange(b"\0a", b"\0b"), KeyRange(b"\xff", None))


@pytest.mark.parametrize(
    ("period", "time", "after"),
    [
        ("1 hour", "2026-01-31T23:30", "2026-02-01T00:30"),
        ("7 days", "2026-02-26T00:00", "2026-03-05T00:00"),
        ("2 weeks", "2026-01-01T00:00", "2026-01-15T00:00"),
        ("1 month", "2026-01-31T00:00", "2026-02-28T00:00"),
        ("3 months", "2026-11-30T00:00", "2027-02-28T00:00"),
        ("12 months", "2024-02-29T00:00", "2025-02-28T00:00"),
        ("1 year", "2024-02-29T00:00", "2025-02-28T00:00"),
        ("4 years", "2024-02-29T00:00", "2028-02-29T00:00"),
        ("1 year", "9999-01-01T00:00", None),
        ("99999 days", "9999-01-01T00:00", None),
    ],
)
def test_periods_are_in_calendar_units(period: str, time: str, after: str | None) -> None:
    found = CalendarPeriod.parse(period).after(dt.datetime.fromisoformat(time))
    assert found == (None if after is None else dt.datetime.fromisoformat(after))


DATED = Partitioning(["region", "day"], [pa.string(), pa.date32()])


@pytest.mark.parametrize(
    ("partitioning", "options", "values", "expiry"),
    [
        (DATED, ("7 days", "", ""), {"region": "2020-01-01", "day": dt.date(2026, 1, 1)}, dt.datetime(2026, 1, 8)),
        (
            DATED,
            ("7 days", "region", ""),
            {"region": "2020-01-01", "day": dt.date(2026, 1, 1)},
            dt.datetime(2020, 1, 8),
        ),
        (DATED, ("7 days", "region", ""), {"region": "north", "day": dt.date(2026, 1, 1)}, None),
        (DATED, ("1 day", "region", "%d.%m.%y"), {"region": "03.02.21", "day": None}, dt.datetime(2021, 2, 4)),
        (
            Partitioning(["at"], [pa.timestamp("us", "Europe/Berlin")]),
            ("1 hour", "", ""),
            {"at": dt.datetime(2026, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))},
            dt.datetime(2026, 1, 1, 1),
        ),
    ],
)
def test_a_partition_expires_after_its_time(
    partitioning: Partitioning, options: tuple[str, str, str], values: dict[str, Any], expiry: dt.datetime | None
) -> None:
    rule = partition_rule(*options, partitioning)
    assert rule is not None
    assert rule.expiry_of(values) == (None if expiry is None else expiry.replace(tzinfo=dt.UTC))


@pytest.mark.parametrize(
    ("partitioning", "options", "message"),
    [
        (None, ("7 days", "", ""), "needs a partitioned table"),
        (DATED, ("7", "", ""), 'such as "7 days"'),
        (DATED, ("0 days", "", ""), 'not "0 days"'),
        (DATED, ("7 fortnights", "", ""), "hours, days, weeks, months or years"),
        (DATED, ("7 days", "id", ""), '"id" is not one: the table is partitioned by region string, day date32'),
        (DATED, ("7 days", "", "%Y"), '"day" is date32'),
        (DATED, ("", "day", ""), 'no effect without "partition_ttl"'),
        (Partitioning(["k"], [pa.int64()]), ("7 days", "", ""), "date, timestamp or string: .* k int64"),
    ],
)
def test_options_that_make_no_rule_are_refused(
    partitioning: Partitioning | None, options: tuple[str, str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        partition_rule(*options, partitioning)
