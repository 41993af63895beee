"""Damages stored rows and changelog records at random, decodes them, and reads all that comes out.

Run as `python -m tests.unit.storage.damage rows|records SEED TIMES`, in a process of its own, because the worst thing
that damage could do is to end it. Prints how often what came of it.
"""

from __future__ import annotations

import collections
import random
import struct
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scankv.model.errors import DataLoss
from streaming_server.storage.changelog.records import Changes, RowKind, decode_record, encode_records
from streaming_server.storage.rows import fixed_parts
from streaming_server.storage.rows.row_codec import RowCodec
from tests.support.tables import define

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = define(
    pa.schema(
        [
            ("k", pa.string()),
            ("i", pa.int32()),
            ("b", pa.bool_()),
            (
                "deep",
                pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int16()))), ("d", pa.decimal128(10, 2))])),
            ),
            ("s", pa.string()),
            ("t", pa.timestamp("ns", "UTC")),
            ("x", pa.binary()),
        ]
    )
)
SECOND = FIRST.add_columns(pa.schema([("n", pa.map_(pa.int8(), pa.string())), ("f", pa.float64())]))
_ODD_BYTES = (0, 1, 0x7F, 0x80, 0xFF)
_ODD_NUMBERS = (0, 1, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def rows(version: int, count: int = 12) -> list[dict[str, Any]]:
    """Generates rows of the first or second version of the table, with nulls and empty values."""
    deep: list[Any] = [{"m": [("a", [1, None, 3]), ("b", None)], "d": Decimal("1.25")}, None, {"m": [], "d": None}]
    result = []
    for i in range(count):
        row: dict[str, Any] = {
            "k": f"k{i}",
            "i": i if i % 3 else None,
            "b": bool(i % 2),
            "deep": deep[: i % 4] if i % 5 else None,
        }
        row |= {"s": "é" * i, "t": i, "x": bytes([i]) * i}
        result.append(row | ({"n": [(i, "v"), (1, None)], "f": 0.5} if version else {}))
    return result


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Returns the bytes with one fault: a flipped bit, another byte, another number, or a missing end."""
    broken = bytearray(data)
    place, way = rng.randrange(len(broken)), rng.random()
    if way < 0.4:
        broken[place] ^= 1 << rng.randrange(8)
    elif way < 0.7:
        broken[place] = rng.choice(_ODD_BYTES)
    elif way < 0.9:
        broken[place : place + 4] = struct.pack("<I", rng.choice(_ODD_NUMBERS))[: len(broken) - place]
    else:
        del broken[place:]
    return bytes(broken)


def read_all(batch: pa.RecordBatch) -> None:
    """Reads every value. A flipped bit can make invalid text and over-long decimals, but not bad offsets."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error) and "precision" not in str(error):
            raise
    batch.take(pa.array(range(batch.num_rows))).serialize()


def damage_rows(rng: random.Random) -> None:
    """Damages some of the rows of a chunk and decodes all or some of its columns, from copies or in place."""
    fixed_parts._COPIED_BYTES = rng.choice((64, 0))  # type: ignore[misc]  # this process has no other use of it
    codec, stored = RowCodec(SECOND), list(_stored_rows())
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(len(stored))
        stored[place] = damaged(stored[place], rng) if stored[place] else b""
    if rng.random() < 0.5:
        stored = stored[len(stored) // 2 :]
    names = codec.schema.names if rng.random() < 0.7 else rng.sample(codec.schema.names, 3)
    read_all(codec.decoder(names).decode(pa.array(stored, pa.binary())))


def _stored_rows() -> list[bytes]:
    stored: list[bytes] = []
    for version, definition in enumerate((FIRST, SECOND)):
        codec = RowCodec(definition)
        stored += codec.encode(pa.RecordBatch.from_pylist(rows(version), schema=codec.schema)).to_pylist()
    return stored


def damage_records(rng: random.Random) -> None:
    """Damages a changelog record and decodes it."""
    batch = pa.RecordBatch.from_pylist(rows(1), schema=SECOND.schema.arrow)
    changes = Changes(np.full(batch.num_rows, RowKind.INSERT, np.uint8), batch)
    ((key, value),) = encode_records(changes, epoch=0, count=0, schema_id=2, commit_micros=5)
    record = decode_record(key, damaged(value, rng), SECOND)
    read_all(record.changes.rows)


DAMAGES: dict[str, Callable[[random.Random], None]] = {"rows": damage_rows, "records": damage_records}


def main(what: str, seed: str, times: str) -> None:
    """Repeats one kind of damage; any error except DataLoss propagates."""
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(int(times)):
        try:
            DAMAGES[what](random.Random(f"{seed} {number}"))
            outcomes["decoded"] += 1
        except DataLoss:
            outcomes["DataLoss"] += 1
        except Exception as error:
            error.add_note(f"while damaging {what} with seed {seed}, number {number}")
            raise
    sys.stdout.write(f"{dict(outcomes)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
