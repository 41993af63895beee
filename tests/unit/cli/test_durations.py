from __future__ import annotations

import pytest
import typer
from rich.filesize import decimal

from scankv.cli.app import app
from scankv.cli.snapshots import parse_duration
from scankv.formats.amounts import duration, size
from scankv.model.errors import UsageError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (4.21, "4.2 s"),
        (59.44, "59.4 s"),
        (59.99, "1 min"),
        (60, "1 min"),
        (200.9, "3 min 21 s"),
        (3600, "1 h"),
        (7505, "2 h 5 min"),
        (604_800, "7 d"),
        (609_000, "7 d 1 h"),
        (-7193.3, "-1 h 59 min"),
    ],
)
def test_a_time_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("600", 600), ("90s", 90), ("10m", 600), ("2h", 7200), ("7d", 604_800), ("1.5 m", 90)]
)
def test_a_time_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "10 parsecs", "-5", "1h30m", "1e3"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f'"{text}" is not a time: write'):
        parse_duration(text)


@pytest.mark.parametrize("text", ["7", "0", "7 days", ""])
def test_how_long_published_versions_are_kept_needs_a_unit(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    publish = ["publish", "game.scores", "scores", "--keep-for", text]
    with pytest.raises(SystemExit):
        typer.main.get_command(app)(publish)
    message = f'--keep-for must be a time with a unit, as in 90s, 10m, 2h or 7d, not "{text}"'
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number", [0, 1, 2, 999, 1000, 1049, 99_999, 123_456, 10**6 - 1, 10**9, 34 * 10**12, 10**18])
def test_a_size_reads_as_rich_writes_sizes(number: int) -> None:
    assert size(number) == decimal(number)
