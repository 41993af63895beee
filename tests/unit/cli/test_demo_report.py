from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console

from scankv.demo.flights import Figures
from scankv.demo.report import Report, bar, checks_of
from scankv.demo.session import Outcome
from scankv.demo.tally import Tally

TRUTH = Figures(3, 600, {"UA": (2, 300), "AA": (1, 300)})
RIGHT = Outcome(
    streamed=Figures(3, 600, {"AA": (1, 300), "UA": (2, 300)}),
    zeros_streamed=0,
    concurrent_updates=1,
    updated=2,
    updated_miles=250,
    afterwards=Figures(3, 350, {}),
    zeros_afterwards=2,
    zeros_looked_up=2,
)
WRONG = {
    "rows": replace(RIGHT, streamed=replace(RIGHT.streamed, rows=2)),
    "sum": replace(RIGHT, streamed=replace(RIGHT.streamed, distance=599)),
    "carriers": replace(RIGHT, streamed=replace(RIGHT.streamed, carriers={"UA": (2, 300), "AA": (1, 299)})),
    "update seen": replace(RIGHT, zeros_streamed=1),
    "no update": replace(RIGHT, concurrent_updates=0),
    "update not found": replace(RIGHT, zeros_looked_up=1),
    "update not streamed": replace(RIGHT, zeros_afterwards=1),
    "rows afterwards": replace(RIGHT, afterwards=Figures(4, 350, {})),
    "sum afterwards": replace(RIGHT, afterwards=Figures(3, 351, {})),
}


def verdict(outcome: Outcome) -> tuple[bool, str]:
    output = io.StringIO()
    passed = Report(Console(file=output, width=80)).print_verdict(checks_of(outcome, TRUTH), outcome.streamed)
    return passed, output.getvalue()


def test_everything_right_passes() -> None:
    passed, output = verdict(RIGHT)
    assert passed
    assert "all 9 checks are true" in output


@pytest.mark.parametrize("what", WRONG)
def test_anything_wrong_fails(what: str) -> None:
    passed, output = verdict(WRONG[what])
    assert not passed
    assert "1 of 9 checks failed" in output
    assert "✗" in output


def test_a_tally_adds_up_over_chunks() -> None:
    tally = Tally()
    tally.add(pa.record_batch({"carrier": ["UA", "AA"], "distance": [100, 300]}))
    tally.add(pa.record_batch({"carrier": ["UA", "UA"], "distance": [0, 200]}))
    assert tally.figures() == Figures(4, 600, {"UA": (3, 300), "AA": (1, 300)})
    assert tally.zeros == 1


def test_bars_are_as_long_as_their_share() -> None:
    assert bar(1, 4) == "████"
    assert bar(0.5, 4) == "██"
    assert bar(0.28125, 4) == "█▏"
    assert bar(0, 4) == ""
