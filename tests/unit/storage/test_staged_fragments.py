"""The fragments of requests to tables with tablets, in the parts of a transaction: what is missing is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import InvalidRequest, Unavailable
from streaming_server.storage.transactions.staging import (
    UPSERT,
    PartFile,
    PartSize,
    StagedRequest,
    read_staged_requests,
    sum_of_sizes,
)

if TYPE_CHECKING:
    from pathlib import Path

TABLETS = ("game.scores#0", "game.scores#1")


def request(table: str, sequence: int, fragment: str = "", tablets: tuple[str, ...] = ()) -> StagedRequest:
    return StagedRequest(
        part="p",
        table=table,
        incarnation="0",
        action=UPSERT,
        rows=1,
        buckets={} if tablets else {0: 1},
        sequence=sequence,
        fragment=fragment,
        tablets=tablets,
    )


def part_with(path: Path, *requests: StagedRequest) -> PartFile:
    part = PartFile(path, "p")
    for each in requests:
        part.append(each, b"")
    return part


def divided(sequence: int, fragment: str = "a") -> list[StagedRequest]:
    """Returns a request that all tablets have, with its summary."""
    return [
        *(request(name, sequence, fragment) for name in TABLETS),
        request("game.scores", sequence, fragment, TABLETS),
    ]


def test_a_request_counts_once_and_its_fragments_balance_its_summary(tmp_path: Path) -> None:
    part = part_with(tmp_path / "0.part", *divided(0), request("game.other", 1), *divided(2))
    assert (part.staged, part.requests, part.rows) == (PartSize(3, 0), 7, 5)
    loaded = PartFile.load(tmp_path / "0.part")
    assert loaded is not None
    assert loaded.staged == part.staged
    # Summaries have no rows to apply.
    found = [each.table for each, _ in read_staged_requests(tmp_path / "0.part", part.requests)]
    assert found == [*TABLETS, "game.other", *TABLETS]


def test_what_several_workers_have_balances_together_only_if_nothing_is_missing(tmp_path: Path) -> None:
    first, second, summary = divided(0)
    here, there = part_with(tmp_path / "0.part", first, summary), part_with(tmp_path / "1.part", second)
    assert here.staged.balance != 0
    assert there.staged.balance != 0
    assert sum_of_sizes([{"p": here.staged}, {"p": there.staged}]) == {"p": PartSize(1, 0)}
    for wrong in (request(TABLETS[1], 0, "b"), request(TABLETS[1], 1, "a"), request(TABLETS[0], 0, "a")):
        other = part_with(tmp_path / f"{wrong.sequence}{wrong.fragment}{wrong.table[-1]}.part", wrong)
        assert sum_of_sizes([{"p": here.staged}, {"p": other.staged}])["p"].balance != 0


def test_a_fragment_is_found_by_its_tablet_and_another_request_of_its_number_is_refused(tmp_path: Path) -> None:
    part = part_with(tmp_path / "0.part", *divided(0), request(TABLETS[0], 1, "b"))
    assert part.find(0, TABLETS[1], "a") == 1
    assert part.find(0, "game.scores", "a") == 2
    assert part.find(1, TABLETS[1], "b") is None
    assert part.find(2, "game.other") is None
    for table in (TABLETS[0], "game.scores"):
        # The request without a summary can be discarded, and the other one is staged.
        with pytest.raises(Unavailable, match="an earlier request 1 of the part"):
            part.find(1, table, "c")
        with pytest.raises(InvalidRequest, match="another request of the part has the number 0"):
            part.find(0, table, "c")
    for fragment in ("c", ""):
        with pytest.raises(InvalidRequest, match="another request of the part has the number 1"):
            part.find(1, "game.other", fragment)


def test_a_summary_is_found_whatever_the_attempt_and_a_fragment_only_of_the_same_attempt(tmp_path: Path) -> None:
    part = part_with(tmp_path / "0.part", *divided(0, "a.1"))
    assert part.find(0, "game.scores", "a.2") == 2
    assert part.find(0, TABLETS[0], "a.1") == 0
    with pytest.raises(InvalidRequest):
        part.find(0, TABLETS[0], "a.2")
    # Of an earlier attempt, which a tablet has refused.
    with pytest.raises(Unavailable):
        part_with(tmp_path / "1.part", request(TABLETS[0], 0, "a.1")).find(0, TABLETS[0], "a.2")


def test_fragments_without_a_summary_are_taken_back(tmp_path: Path) -> None:
    complete = divided(0)
    part = part_with(tmp_path / "0.part", *complete, request(TABLETS[0], 1, "b"), request(TABLETS[1], 1, "b"))
    rest = part.without_fragments(1)
    assert rest is not None
    assert (rest.staged, rest.requests, rest.sequences) == (PartSize(1, 0), 3, [0, 0, 0])
    rest.append(request(TABLETS[1], 1, "c"), b"")
    assert rest.find(1, TABLETS[1], "c") == 3
    # A request that is staged stays, and so does one that is not the last.
    assert rest.without_fragments(0) is rest
    assert part_with(tmp_path / "1.part", request(TABLETS[0], 0, "a")).without_fragments(0) is None
