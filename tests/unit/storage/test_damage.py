"""Damaged stored bytes give DataLoss or a valid value, but never a crash or a read beyond the stored bytes."""

from __future__ import annotations

import random
import subprocess
import sys

import pyarrow as pa
import pytest

from scankv.model.errors import DataLoss
from streaming_server.storage.rows.row_codec import RowCodec
from tests.unit.storage import damage


@pytest.mark.parametrize("what", ["rows", "records"])
@pytest.mark.timeout(300)  # damages bytes in its own process
@pytest.mark.breadth
def test_damage_is_data_loss_or_a_value_and_never_a_crash(what: str) -> None:
    run_damage(what, random.randrange(2**32), 400)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["rows", "records"])
def test_damage_is_never_a_crash_however_often(what: str) -> None:
    run_damage(what, random.randrange(2**32), 60_000)


def run_damage(what: str, seed: int, times: int) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", damage.__name__, what, str(seed), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"seed {seed}: exit code {done.returncode}\n{done.stderr[-3000:]}"
    assert "DataLoss" in done.stdout


@pytest.mark.parametrize("version", [0, 1])
def test_every_shortened_row_is_data_loss(version: int) -> None:
    codec = RowCodec((damage.FIRST, damage.SECOND)[version])
    batch = pa.RecordBatch.from_pylist(damage.rows(version, 4), schema=codec.schema)
    *others, whole = codec.encode(batch).to_pylist()
    for length in range(len(whole)):
        with pytest.raises(DataLoss):
            codec.decoder().decode(pa.array([*others, whole[:length]], pa.binary()))


def test_a_row_with_something_behind_it_is_data_loss() -> None:
    codec = RowCodec(damage.FIRST)
    (row,) = codec.encode(pa.RecordBatch.from_pylist(damage.rows(0, 1), schema=codec.schema)).to_pylist()
    with pytest.raises(DataLoss):
        codec.decoder(["i"]).decode(pa.array([row + b"\x00"]))


@pytest.mark.parametrize(
    "header", ["00 00 01000000", "02 00 01000000", "01 01 01000000", "01 00 00000000", "01 00 03000000"]
)
def test_a_row_of_an_unknown_format_or_schema_is_data_loss(header: str) -> None:
    codec = RowCodec(damage.SECOND)
    (row,) = codec.encode(pa.RecordBatch.from_pylist(damage.rows(1, 1), schema=codec.schema)).to_pylist()
    with pytest.raises(DataLoss):
        codec.decoder(["k"]).decode(pa.array([bytes.fromhex(header) + row[6:]]))
