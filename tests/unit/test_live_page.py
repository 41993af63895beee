"""What the script of a live page gets: rows as text, and the end of its session."""

from __future__ import annotations

import logging
import time
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from http_gateway.console.live_page import _ends_with_token, top_fields
from http_gateway.console.session_files import SessionFiles
from http_gateway.console.sessions import Session
from http_gateway.problems import HttpRefusal
from scankv.model.errors import Unauthenticated

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_session_ends_for_its_page_also_if_its_file_cannot_be_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = SessionFiles(tmp_path, seconds=60, idle_seconds=60)
    session = Session(files.begin("scankv_1_x", time.time()), "scankv_1_x")
    assert session.keys is not None
    (tmp_path / session.keys.name).unlink()
    (tmp_path / session.keys.name).mkdir()
    gateway = cast("Any", SimpleNamespace(sessions=files))
    with caplog.at_level(logging.WARNING), pytest.raises(HttpRefusal) as refusal, _ends_with_token(gateway, session):
        raise Unauthenticated("revoked")
    assert (refusal.value.status, refusal.value.reason) == (401, "SESSION_ENDED")
    assert "the file of a session cannot be removed" in caplog.text
