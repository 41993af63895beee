"""A version of a published table is a number or a time, and a wrong time is not taken for a snapshot."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from scankv.cli.positions import parse_stop, parse_version
from scankv.model.errors import UsageError


@pytest.mark.parametrize(
    ("text", "version"),
    [("12", 12), ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)), ("a1b2", None), ("a.b@x", None)],
)
def test_a_version_is_a_number_or_a_time(text: str, version: int | datetime | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["2026-02-30", "2026-01-31T25:00:00Z", "9999-12-31T23:59:59-01:00"])
def test_a_wrong_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=rf'--as-of must be .* or a time .*, not "{text}"'):
        parse_version(text)
    with pytest.raises(UsageError, match=f'--to must be .* or a time .*, not "{text}"'):
        parse_stop("--to", text)
