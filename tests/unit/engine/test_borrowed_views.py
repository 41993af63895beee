"""Borrowed views: what is shared, what a lost loan ends, and what a removed view is reported as."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from scankv.model.errors import DataLoss, SnapshotLost, TableNotFound, Unavailable
from streaming_server.engine.snapshots.borrowed_views import BorrowedViews, borrowed_view
from streaming_server.engine.snapshots.loans import Loan
from streaming_server.engine.snapshots.pinned_views import IDLE_VIEWS_OPEN
from tests.support.plans import plan_of
from tests.support.snapshots import TABLE, new_table, put, tables_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from streaming_server.engine.snapshots.borrowed_views import BorrowedView
    from streaming_server.engine.tables.tables import Tables

pytestmark = pytest.mark.asyncio

EVERYTHING = plan_of()


class LendsInProcess:
    """Borrows views from tables of this process.

    Attributes:
        loans: The current loans.
    """

    def __init__(self, tables: Tables, aliases: Path) -> None:
        self._tables = tables
        self.aliases = aliases
        self.loans: list[Loan] = []

    @asynccontextmanager
    async def borrow(self, table: str, snapshot_id: str) -> AsyncIterator[Loan]:
        with self._tables.snapshots.lend(snapshot_id, table) as lent:
            loan = Loan(lent.view_id, lent.incarnation)
            self.loans.append(loan)
            try:
                yield loan
            finally:
                self.loans.remove(loan)


class BorrowerInProcess:
    """Tables with a snapshot, and a borrower of its view."""

    def __init__(self, tables: Tables, aliases: Path) -> None:
        self.tables = tables
        self.lender = LendsInProcess(tables, aliases)
        self.views = BorrowedViews(
            self.lender, lambda _: tables.table(TABLE).state.path, tables._resources, tables._executor
        )

    async def pin(self) -> str:
        return (await self.tables.snapshots.pin(self.tables.table(TABLE).pinning)).snapshot_id


@pytest_asyncio.fixture
async def borrower(tmp_path: Path) -> AsyncIterator[BorrowerInProcess]:
    (tmp_path / "aliases").mkdir()
    async with tables_in(tmp_path / "data") as tables:
        await put(await new_table(tables), {f"p{number}": number for number in range(100)})
        made = BorrowerInProcess(tables, tmp_path / "aliases")
        yield made
        await made.views.close()
        assert list((tmp_path / "aliases").iterdir()) == []


async def rows_in(view: BorrowedView) -> int:
    """Reads all rows of a view by a scan."""
    reader = await view.open_buckets(None)
    opened = await reader.open_scan(EVERYTHING)
    rows = 0
    while (chunk := opened.source.next_chunk(1000, 1 << 20)) is not None:
        rows += chunk.batch.num_rows
    opened.source.close()
    return rows


async def test_a_view_is_only_read_by_the_call_that_has_borrowed_it(borrower: BorrowerInProcess) -> None:
    snapshot = await borrower.pin()
    assert borrowed_view(snapshot, TABLE) is None
    async with borrower.views.borrow(snapshot, TABLE):
        view = borrowed_view(snapshot, TABLE)
        assert view is not None
        assert await rows_in(view) == 100
        assert borrowed_view("another", TABLE) is None
        assert borrowed_view(snapshot, "game.another") is None
    assert borrowed_view(snapshot, TABLE) is None


async def test_calls_that_follow_each_other_share_the_open_files(borrower: BorrowerInProcess) -> None:
    snapshot = await borrower.pin()
    found = []
    for _ in range(2):
        async with borrower.views.borrow(snapshot, TABLE):
            view = borrowed_view(snapshot, TABLE)
            assert view is not None
            await view.open_buckets(None)
            found.append(view)
    assert found[0] is found[1]
    assert found[0].open_checkpoints == 3


async def test_open_files_do_not_let_a_released_snapshot_be_read(borrower: BorrowerInProcess) -> None:
    snapshot = await borrower.pin()
    async with borrower.views.borrow(snapshot, TABLE):
        view = borrowed_view(snapshot, TABLE)
        assert view is not None
        assert await rows_in(view) == 100
    await borrower.tables.snapshots.release(snapshot)
    with pytest.raises(SnapshotLost):
        async with borrower.views.borrow(snapshot, TABLE):
            raise AssertionError("the snapshot has ended")


async def test_few_views_stay_open_without_readers(borrower: BorrowerInProcess) -> None:
    snapshots = []
    for number in range(IDLE_VIEWS_OPEN + 3):
        await put(borrower.tables.table(TABLE), {"new": number})
        snapshots.append(await borrower.pin())
    for snapshot in snapshots:
        async with borrower.views.borrow(snapshot, TABLE):
            view = borrowed_view(snapshot, TABLE)
            assert view is not None
            await view.open_buckets(None)
    assert len(borrower.views) == IDLE_VIEWS_OPEN


async def test_a_view_that_was_removed_under_its_borrower_is_no_damage(borrower: BorrowerInProcess) -> None:
    snapshot = await borrower.pin()
    async with borrower.views.borrow(snapshot, TABLE):
        view = borrowed_view(snapshot, TABLE)
        assert view is not None
        await view.open_buckets([0])
        shutil.rmtree(view.directory.path)
        with pytest.raises(Unavailable):
            await view.open_buckets([1])
        assert isinstance(view.record_error(0, DataLoss("a file is missing")), Unavailable)
        assert isinstance(view.mark_base_damaged(0, DataLoss("a file is missing")), Unavailable)
        assert view._damaged_bases == set()
    borrower.lender.loans.clear()
    borrower.views._end(view, Unavailable("as the end of the loan does"))
    with pytest.raises(Unavailable):
        async with borrower.views.borrow(snapshot, TABLE):
            raise AssertionError("the view is gone")


@pytest.mark.parametrize("is_removed_first", [True, False])
async def test_a_drop_is_no_damage_whether_its_message_or_the_removal_comes_first(
    borrower: BorrowerInProcess, is_removed_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = await borrower.pin()
    async with borrower.views.borrow(snapshot, TABLE):
        view = borrowed_view(snapshot, TABLE)
        assert view is not None
        reader = await view.open_buckets([0])
        if is_removed_first:
            await borrower.tables.drop(TABLE)
        else:
            borrower.lender.loans[0].lose(TableNotFound("the table was dropped"))
            await borrower.views._work.join()
        reason = Unavailable if is_removed_first else TableNotFound
        assert isinstance(reader.record_error(0, DataLoss("a file is missing")), reason)
        assert isinstance(reader.record_base_error([0], 0, DataLoss("a file is missing")), reason)
        with pytest.raises(reason):
            await view.open_buckets([1])
        assert view._damaged_bases == set()
    assert "DATA_LOSS" not in caplog.text
    if is_removed_first:
        # The repeated call asks the owner, which knows the reason.
        with pytest.raises(SnapshotLost):
            async with borrower.views.borrow(snapshot, TABLE):
                raise AssertionError("the table is dropped")


async def test_a_loan_of_a_table_that_was_replaced_is_no_damage(borrower: BorrowerInProcess) -> None:
    snapshot = await borrower.pin()
    with borrower.tables.snapshots.lend(snapshot, TABLE) as lent, pytest.raises(Unavailable, match="was removed"):
        await borrower.views._find(TABLE, Loan(lent.view_id, "the incarnation before"))


async def test_a_view_is_read_after_the_empty_directory_for_links_was_cleaned_up(borrower: BorrowerInProcess) -> None:
    snapshot = await borrower.pin()
    borrower.lender.aliases.rmdir()
    async with borrower.views.borrow(snapshot, TABLE):
        view = borrowed_view(snapshot, TABLE)
        assert view is not None
        assert await rows_in(view) == 100


async def test_damage_of_a_borrowed_view_is_reported_as_damage(borrower: BorrowerInProcess) -> None:
    snapshot = await borrower.pin()
    async with borrower.views.borrow(snapshot, TABLE):
        view = borrowed_view(snapshot, TABLE)
        assert view is not None
        (view.directory.bucket(2) / "CURRENT").unlink()
        with pytest.raises(DataLoss):
            await view.open_buckets(None)
