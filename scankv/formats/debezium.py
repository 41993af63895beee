"""Formats changes as Debezium envelopes: one JSON object per line, with the row before and after.

The fields are those of Debezium's connectors: `before`, `after`, `op` (`c` created, `u` updated, `d` deleted, `r` read
from the whole table), `ts_ms` and `source`, which has the database, the table, `snapshot`, and in addition the bucket
and the offset. See https://debezium.io/documentation/reference/stable/connectors/postgresql.html, "Data change events".
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from scankv.formats.json_text import json_lines, to_json
from scankv.formats.scalar_text import concatenate
from scankv.model import lazy_compute as pc
from scankv.model.tables.columns import CHANGE_COLUMNS

_OPERATIONS: Final = {"+I": "c", "+U": "u", "-D": "d"}


def debezium_lines(changes: pa.RecordBatch, database: str, table: str) -> pa.Buffer:
    """Returns the changes of a batch as envelopes, one per line, each line with its newline.

    An update is one envelope, with the offset and time of its `update after` row. An `update before` row without its
    `update after` row is left out. If the changelog of the table has no `update before` rows, `before` is null for
    updates and the key for deleted rows.

    Args:
        changes: A batch of a stream of changes.
        database: The database of the table.
        table: The name of the table within the database.
    """
    kinds = np.array(changes.column("_change_type").to_pylist())
    rows = changes.select(range(len(CHANGE_COLUMNS), changes.num_columns))
    texts = pa.array(json_lines(rows).to_pybytes().decode().split("\n")[:-1], pa.string())
    # An `update before` row, if the changelog has it, directly precedes its `update after` row.
    behind_before = np.zeros(len(kinds), np.bool_)
    behind_before[1:] = kinds[:-1] == "-U"
    shown = np.flatnonzero(kinds != "-U")
    kinds, behind_before = kinds[shown], behind_before[shown]
    has_before = (kinds == "+U") & behind_before | (kinds == "-D")
    before_places = np.where(has_before, np.where(kinds == "+U", shown - 1, shown), -1)
    before = texts.take(pa.array(before_places, mask=before_places < 0))
    after = pc.if_else(pa.array(kinds != "-D"), texts.take(pa.array(shown)), None)
    found = changes.take(pa.array(shown))
    read = found.column("_log_offset").is_null()
    operations = pc.if_else(read, "r", pa.array([_OPERATIONS[kind] for kind in kinds], pa.string()))
    millis = pc.divide(found.column("_commit_timestamp").cast(pa.int64()), 1000)
    source = to_json(
        pa.StructArray.from_arrays(
            [
                pa.repeat("scankv", len(found)),
                pa.repeat(database, len(found)),
                pa.repeat(table, len(found)),
                pc.if_else(read, "true", "false"),
                found.column("_bucket"),
                found.column("_log_offset"),
                millis,
            ],
            ["connector", "db", "table", "snapshot", "bucket", "offset", "ts_ms"],
        )
    )
    parts = ['{"before":', before, ',"after":', after, ',"op":"', operations, '","ts_ms":', millis.cast(pa.string())]
    lines = pc.binary_join_element_wise(
        *parts, ',"source":', source, "}\n", "", null_handling="replace", null_replacement="null"
    )
    return concatenate(lines)
