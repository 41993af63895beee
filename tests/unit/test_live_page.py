"""What the script of a live page gets of rows."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from http_gateway.console.live_page import top_fields


def test_cells_are_text_and_columns_of_numbers_are_marked() -> None:
    rows = pa.table(
        {
            "name": ["<b>", None],
            "whole": pa.array([2**63 - 1, None], pa.int64()),
            "float": [float("nan"), -0.5],
            "decimal": [Decimal("1.50"), None],
            "true": [True, None],
            "list": [[1, 2], None],
            "long": ["x" * 301, ""],
        }
    )
    assert top_fields(rows) == {
        "columns": [
            {"name": "name", "number": False},
            {"name": "whole", "number": True},
            {"name": "float", "number": True},
            {"name": "decimal", "number": True},
            {"name": "true", "number": False},
            {"name": "list", "number": False},
            {"name": "long", "number": False},
        ],
        "rows": [
            ["<b>", "9223372036854775807", "nan", "1.50", "true", "[1,2]", "x" * 300 + "…"],
            [None, None, "-0.5", None, None, None, ""],
        ],
    }


def test_no_rows_have_columns_nevertheless() -> None:
    rows = pa.table({"score": pa.array([], pa.int64())})
    assert top_fields(rows) == {"columns": [{"name": "score", "number": True}], "rows": []}
