"""Tables whose rows expire do what a dict does, whatever happens to them and in whatever order."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.model.expiry_history import ENGINES, ExpiryHistory

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio

KINDS: list[tuple[bool, dict[str, Any]]] = [
    (False, {"indexes": [["value"]], "columnar_base": "eager"}),
    (False, {"ttl_changes": "none", "columnar_base": "eager"}),
    (True, {"indexes": [["value"]], "columnar_base": "eager"}),
    (True, {"ttl_changes": "none", "columnar_base": "eager"}),
]


@pytest.mark.represented_by("first_row")
@pytest.mark.parametrize("engine", ENGINES)
async def test_rows_expire_as_in_a_dict(engine: str, tmp_path: Path) -> None:
    by_write, options = KINDS[list(ENGINES).index(engine) % len(KINDS)]
    late = engine in ("first_row", "partial_update")
    await ExpiryHistory(Random(engine), tmp_path, engine, by_write=by_write, options=options, late=late).run(15)


@pytest.mark.soak
@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(3))
async def test_rows_expire_as_in_a_dict_for_long(engine: str, kind: int, seed: int, tmp_path: Path) -> None:
    by_write, options = KINDS[kind]
    random = Random(f"{engine} {kind} {seed}")
    history = ExpiryHistory(random, tmp_path, engine, by_write=by_write, options=options, late=random.random() < 0.5)
    await history.run(120)
    assert history.read_bases
