"""Staged runs come back completely, in key order, and rows with the same key together in the order of requests."""

from __future__ import annotations

import random
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss, RequestTooLarge
from streaming_server.storage.bootstrap import staged_runs
from streaming_server.storage.bootstrap.staged_runs import BootstrapRequest, RequestOnDisk, StagedRuns
from tests.support.examples import seeds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.mark.parametrize("width", [8, None])
@seeds(3)
def test_every_row_comes_once_in_order_in_ranges_of_a_size(tmp_path: Path, seed: int, width: int | None) -> None:
    rng = random.Random(f"{seed} {width}")
    runs = StagedRuns(tmp_path / "staged", SCHEMA)
    requests = [BootstrapRequest(f"part {n % 2}", n // 2) for n in range(rng.randrange(1, 9))]
    staged: dict[BootstrapRequest, list[tuple[int, bytes, int]]] = {}
    number = 0
    for request in requests:
        rows = []
        for _ in range(rng.choice([0, 1, 100, 3000])):
            key = rng.randbytes(width or rng.randrange(5)) if rng.random() < 0.9 else b"\1" * 8
            rows.append((rng.randrange(3), key, number))
            number += 1
        staged[request] = rows
        batch = pa.record_batch([pa.array([row[2] for row in rows], pa.int64())], schema=SCHEMA)
        keys = pa.array([row[1] for row in rows], pa.binary())
        runs.append(request, batch, keys, np.array([row[0] for row in rows], np.int32))
    runs.seal()
    chosen = rng.sample(requests, rng.randrange(len(requests) + 1))
    for bucket in range(4):
        expected = [(key, n) for request in chosen for place, key, n in staged[request] if place == bucket]
        expected.sort(key=lambda row: row[0])
        found: list[tuple[bytes, int]] = []
        for part in runs.read(bucket, chosen, rng.choice([1, 500, 10**6])):
            duplicate = part.find_duplicate()
            here: list[tuple[bytes, int]] = []
            for rows_, keys_ in part.slices(rng.choice([1, 7, 10_000])):
                assert not here or here[-1][0] < keys_[0].as_py(), "a key is in two slices"
                here += zip(keys_.to_pylist(), rows_.column("n").to_pylist(), strict=True)
            assert (duplicate is not None) == (len({key for key, _ in here}) < len(here))
            assert not found or found[-1][0] < here[0][0], "a key is in two ranges"
            found += here
        assert found == expected
    assert set(runs.buckets()) == {place for rows in staged.values() for place, _, _ in rows}
    runs.close()


def staged(path: Path, rows: Callable[[int], dict[int, int]], count: int) -> tuple[StagedRuns, list[BootstrapRequest]]:
    """Stages requests, each with a row of so many bytes for each key. Returns their runs and the requests."""
    schema = pa.schema([("text", pa.string())])
    runs, requests = StagedRuns(path / "staged", schema), [BootstrapRequest("rows", n) for n in range(count)]
    for request in requests:
        sizes = rows(request.sequence)
        batch = pa.record_batch([pa.array(["x" * size for size in sizes.values()])], schema=schema)
        keys = pa.array([key.to_bytes(8, "big") for key in sizes], pa.binary())
        runs.append(request, batch, keys, np.zeros(len(keys), np.int32))
    runs.seal()
    return runs, requests


def test_many_small_runs_are_divided_into_ranges(tmp_path: Path) -> None:
    runs, requests = staged(tmp_path, lambda n: {row * 1000 + n: 100 for row in range(20)}, 500)
    sizes = [len(part.keys) for part in runs.read(0, requests, 400_000)]
    assert sum(sizes) == 10_000
    assert len(sizes) > 1
    assert max(sizes) < 2 * 10_000 / len(sizes)
    runs.close()


def test_ranges_have_about_equal_bytes_if_some_keys_have_large_rows(tmp_path: Path) -> None:
    def rows(number: int) -> dict[int, int]:
        large = {number * 4 + row: 10_000 for row in range(4)}
        return large | {10**9 + number * 1000 + row: 1 for row in range(1000)}

    runs, requests = staged(tmp_path, rows, 50)
    sizes = [sum(rows.nbytes for rows, _ in part.slices(1000)) for part in runs.read(0, requests, 100_000)]
    assert sum(sizes) > 2_000_000
    assert max(sizes) < 300_000
    runs.close()


def test_rows_of_one_key_that_exceed_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, requests = staged(tmp_path, lambda n: {7: 10_000, 1000 + n: 1}, 50)
    monkeypatch.setattr(staged_runs, "_MOST_RANGE_BYTES", 400_000)
    with pytest.raises(RequestTooLarge, match=r"the rows of one key have 50\d,\d+ bytes; the limit is 400,000"):
        list(runs.read(0, requests, 1000))
    assert sum(len(part.keys) for part in runs.read(0, requests[:30], 1000)) == 60
    runs.close()


def write_requests(path: Path, count: int) -> list[int]:
    """Stages requests of 10 rows. Returns the size of the file after each."""
    runs, ends = StagedRuns(path, SCHEMA), []
    for number in range(count):
        batch = pa.record_batch([pa.array(range(10))], schema=SCHEMA)
        keys = pa.array([(number * 10 + row).to_bytes(8, "big") for row in range(10)], pa.binary())
        staged = RequestOnDisk(10, 100, f"digest {number}".encode(), number)
        runs.append(BootstrapRequest("one", number), batch, keys, np.arange(10, dtype=np.int32) % 2, staged)
        ends.append(path.stat().st_size)
    runs.close()
    return ends


def test_a_torn_request_is_cut_off_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "staged"
    ends = write_requests(path, 3)
    content = path.read_bytes()
    for size in range(ends[1], ends[2] + 1):
        path.write_bytes(content[:size])
        runs = StagedRuns(path, SCHEMA)
        there = 3 if size == ends[2] else 2
        assert runs.requests == {"one": [RequestOnDisk(10, 100, f"digest {n}".encode(), n) for n in range(there)]}
        request, rows = BootstrapRequest("one", there), pa.record_batch([pa.array([7])], schema=SCHEMA)
        runs.append(request, rows, pa.array([b"new"], pa.binary()), np.zeros(1, np.int32))
        runs.seal()
        requests = [BootstrapRequest("one", number) for number in range(there + 1)]
        assert [len(part.keys) for part in runs.read(0, requests, 1 << 20)] == [5 * there + 1]
        runs.close()


def test_a_request_whose_rows_did_not_reach_the_disk_is_cut_off(tmp_path: Path) -> None:
    # After a power failure, a file can have its size but not its contents.
    path = tmp_path / "staged"
    ends = write_requests(path, 3)
    content = path.read_bytes()
    path.write_bytes(content[: ends[2] - 64] + bytes(64))
    runs = StagedRuns(path, SCHEMA)
    assert len(runs.requests["one"]) == 2
    runs.close()
    path.write_bytes(content[: ends[0] - 64] + bytes(ends[2] - ends[0] + 64))
    runs = StagedRuns(path, SCHEMA)
    assert runs.requests == {}
    runs.close()


def test_a_request_without_rows_counts(tmp_path: Path) -> None:
    for start in range(2):
        runs = StagedRuns(tmp_path / "staged", SCHEMA)
        assert len(runs.requests.get("one", ())) == start
        empty, none = pa.record_batch([pa.array([], pa.int64())], schema=SCHEMA), pa.array([], pa.binary())
        runs.append(BootstrapRequest("one", start), empty, none, np.zeros(0, np.int32))
        runs.close()


def test_damage_is_found_when_runs_are_read_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "staged"
    ends = write_requests(path, 3)
    content = bytearray(path.read_bytes())
    content[ends[0] - 40] ^= 1
    path.write_bytes(content)
    runs = StagedRuns(path, SCHEMA)
    runs.seal()
    requests = [BootstrapRequest("one", number) for number in range(3)]
    with pytest.raises(DataLoss, match=r"the staged rows in .* are damaged"):
        list(chain.from_iterable(runs.read(bucket, requests, 1 << 20) for bucket in range(2)))
    runs.close()
