"""Which columns an Iceberg table can hold."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scankv.lake.iceberg.iceberg_types import iceberg_schema
from scankv.lake.lake_table import FIELD_ID
from scankv.model.errors import UsageError


def test_the_type_to_use_in_place_of_nanoseconds_keeps_its_time_zone() -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("ns", "America/St_Johns"), metadata={FIELD_ID: b"1"})])
    with pytest.raises(UsageError, match=r"use timestamp\[us, tz=America/St_Johns\]"):
        iceberg_schema(schema)
