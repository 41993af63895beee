"""Reads files for tests: everything at once, with the reported messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from scankv.formats.blocks import BadRows, good_rows
from scankv.formats.csv_dialect import CsvOptions
from scankv.formats.files import open_input
from scankv.formats.reader import infer_schema, read_blocks
from scankv.model.types.default_values import NO_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Reading:
    rows: pa.Table
    reported: list[str]
    bad_rows: int


def read(
    path: Path,
    schema: pa.Schema,
    *,
    skip: bool = False,
    null: Sequence[str] = (),
    delimiter: str | None = None,
    defaults: Mapping[str, pa.Scalar] = NO_DEFAULTS,
) -> Reading:
    """Reads a complete file. The file's name is removed from the reported messages."""
    reported: list[str] = []
    bad = BadRows("file", skip=skip, report=lambda message: reported.append(message.removeprefix("file: ")))
    csv = CsvOptions(tuple(null), delimiter)
    with open_input(str(path)) as source:
        blocks = read_blocks(source, schema, bad, csv, defaults)
        batches = [good.rows for block in blocks for good in good_rows(block, bad)]
    return Reading(pa.Table.from_batches(batches, schema), reported, bad.count)


def infer(path: Path, *, skip: bool = False, null: Sequence[str] = (), delimiter: str | None = None) -> pa.Schema:
    csv = CsvOptions(tuple(null), delimiter)
    with open_input(str(path), again=True) as source:
        return infer_schema(source, BadRows("file", skip=skip), csv)
