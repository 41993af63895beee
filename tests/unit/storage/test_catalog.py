"""Table definitions on disk: after any crash, a table exists completely or not at all."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss, InvalidRequest, ScanKvError, TableExists, TableNotFound
from scankv.model.tables.schema import TableDefinition
from streaming_server.storage.tables import catalog as catalog_module
from streaming_server.storage.tables.catalog import Catalog
from streaming_server.storage.tables.data_directory import DataDirectory
from tests.support.tables import SCORES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def opened(data: Path) -> Iterator[Catalog]:
    directory = DataDirectory(data)
    try:
        yield Catalog(directory)
    finally:
        directory.close()


def definition(name: str = "game.scores", incarnation: str = "a" * 32) -> TableDefinition:
    return TableDefinition.create(
        name, SCORES, ["player"], buckets=3, incarnation=incarnation, created_millis=1_700_000_000_000
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def file(data: Path) -> Path:
    """Returns the definition of a table on disk."""
    with opened(data) as catalog:
        catalog.create(definition())
        return catalog.path("game.scores") / "table.json"


class CrashedError(BaseException):
    """The simulated end of the process."""


def test_tables_are_there_after_a_restart(data: Path) -> None:
    created = [definition("a.b"), definition("a.c", "b" * 32), definition("game.scores", "c" * 32)]
    with opened(data) as catalog:
        for table in reversed(created):
            catalog.create(table)
        assert catalog.names() == ["a.b", "a.c", "game.scores"]
    with opened(data) as catalog:
        assert [catalog.get(name) for name in catalog.names()] == created
        assert len(catalog) == 3


def test_a_name_is_taken_once_and_free_again_after_the_drop(data: Path) -> None:
    with opened(data) as catalog:
        catalog.create(definition())
        with pytest.raises(TableExists):
            catalog.create(definition(incarnation="b" * 32))
        dropped = catalog.drop("game.scores")
        with pytest.raises(TableNotFound):
            catalog.get("game.scores")
        catalog.create(definition(incarnation="b" * 32))
        catalog.discard(dropped)
        assert not dropped.exists()
    with opened(data) as catalog:
        assert catalog.get("game.scores").incarnation == "b" * 32


def test_an_unknown_table_names_the_near_ones(data: Path) -> None:
    with opened(data) as catalog:
        catalog.create(definition())
        with pytest.raises(TableNotFound, match=r'did you mean "game.scores"'):
            catalog.get("game.score")
        for name in ("../../etc/passwd", "game", "", "a.b.c", "a./b", "game.sc\x00ores", ".." * 100):
            with pytest.raises(InvalidRequest):
                catalog.get(name)


@pytest.mark.parametrize("crash_at", range(12))
def test_a_crash_in_create_leaves_the_table_whole_or_absent(data: Path, crash_at: int) -> None:
    with pytest.MonkeyPatch.context() as patch, opened(data) as catalog:
        crash_at_step(patch, crash_at)
        try:
            catalog.create(definition())
        except CrashedError:
            finished = False
        else:
            finished = True
    with opened(data) as catalog:
        assert catalog.names() in ([["game.scores"]] if finished else [[], ["game.scores"]])
        if catalog.names():
            assert catalog.get("game.scores") == definition()
        else:
            catalog.create(definition(incarnation="b" * 32))
        assert (catalog.path("game.scores") / "buckets").is_dir()
        assert not list((data / "trash").iterdir())


@pytest.mark.parametrize("crash_at", range(6))
def test_a_crash_in_replace_leaves_the_old_definition_or_the_new_one(data: Path, crash_at: int) -> None:
    altered = definition().add_columns(pa.schema([("more", pa.int8())]))
    with pytest.MonkeyPatch.context() as patch, opened(data) as catalog:
        catalog.create(definition())
        crash_at_step(patch, crash_at)
        try:
            catalog.replace(altered)
            finished = True
        except CrashedError:
            finished = False
    with opened(data) as catalog:
        assert catalog.get("game.scores") in ([altered] if finished else [definition(), altered])
        catalog.replace(altered)
    with opened(data) as catalog:
        assert catalog.get("game.scores") == altered


@pytest.mark.parametrize("crash_at", range(5))
def test_a_crash_in_drop_leaves_the_table_whole_or_absent(data: Path, crash_at: int) -> None:
    with pytest.MonkeyPatch.context() as patch, opened(data) as catalog:
        catalog.create(definition())
        crash_at_step(patch, crash_at)
        try:
            catalog.discard(catalog.drop("game.scores"))
            finished = True
        except CrashedError:
            finished = False
    with opened(data) as catalog:
        assert not list((data / "trash").iterdir())
        if catalog.names():
            assert not finished
            assert catalog.get("game.scores") == definition()
            catalog.drop("game.scores")
        catalog.create(definition(incarnation="b" * 32))


def crash_at_step(patch: pytest.MonkeyPatch, number: int) -> None:
    """Simulates the end of the process before its `number`-th durable step on disk."""
    from pathlib import Path

    from streaming_server.storage.tables import data_directory

    left = number

    def stepping(function: object) -> object:
        def step(*args: object, **kwargs: object) -> object:
            nonlocal left
            if left == 0:
                raise CrashedError
            left -= 1
            assert callable(function)
            return function(*args, **kwargs)

        return step

    for place, name in (
        (Path, "mkdir"),
        (Path, "rename"),
        (Path, "replace"),
        (Path, "open"),
        (shutil, "rmtree"),
        (data_directory, "sync_directory"),
        (catalog_module, "sync_directory"),
    ):
        patch.setattr(place, name, stepping(getattr(place, name)))


def test_what_is_no_table_is_no_table(data: Path) -> None:
    with opened(data) as catalog:
        catalog.create(definition())
    (data / "tables" / "empty").mkdir()
    (data / "tables" / "game" / "left" / "buckets" / "0000").mkdir(parents=True)
    (data / "tables" / "game" / "scores" / "table.json.partial").write_bytes(b'{"name": ')
    (data / "trash" / "new-x" / "buckets").mkdir(parents=True)
    with opened(data) as catalog:
        assert catalog.names() == ["game.scores"]
        catalog.create(definition("game.left", "b" * 32))
        catalog.create(definition("empty.t", "c" * 32))
    with opened(data) as catalog:
        assert catalog.names() == ["empty.t", "game.left", "game.scores"]
        assert not list((data / "trash").iterdir())


def test_a_definition_that_was_cut_off_is_refused_by_its_path(data: Path, file: Path) -> None:
    good = file.read_bytes()
    for length in range(0, len(good), 5):
        file.write_bytes(good[:length])
        with opened(data) as catalog, pytest.raises(DataLoss, match=r"table\.json"):
            catalog.get("game.scores")


@pytest.mark.parametrize("text", ["[]", "null", "7", '"x"', "{}", '{"name": "a.b"}'])
def test_a_definition_of_another_form_is_refused_by_its_path(data: Path, file: Path, text: str) -> None:
    file.write_text(text)
    with opened(data) as catalog, pytest.raises(DataLoss, match=r"table\.json"):
        catalog.get("game.scores")


def test_a_flipped_bit_in_a_definition_never_makes_it_another_one(data: Path, file: Path) -> None:
    good = file.read_bytes()
    accepted, unnamed = [], []
    for position in range(0, len(good), 3):
        file.write_bytes(good[:position] + bytes([good[position] ^ 1 << position % 7]) + good[position + 1 :])
        try:
            with opened(data) as catalog:
                if catalog.get("game.scores") != definition():
                    accepted.append(good[max(position - 20, 0) : position + 5])
        except ScanKvError as error:
            if "table.json" not in error.message:
                unnamed.append(error.message)
    assert not accepted
    assert not unnamed
