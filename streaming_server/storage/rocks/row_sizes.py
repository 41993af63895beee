"""Estimates how many bytes the stored rows of a store have, from statistics of RocksDB."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import rocksdict

_TABLES: Final = re.compile(r"# entries=(\d+);.*raw key size=(\d+);.*raw value size=(\d+);")
_NEW_ENTRIES: Final = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
_NEW_BYTES: Final = "rocksdb.cur-size-all-mem-tables"


def estimate_row_bytes(rows: rocksdict.Rdict) -> int:
    """Returns about how many bytes a row of a column family has, with its key and without compression.

    Takes tens of microseconds. RocksDB takes memory in blocks of a megabyte, so the result is too large if few rows
    were written and not flushed.
    """
    found = _TABLES.search(rows.property_value("rocksdb.aggregated-table-properties") or "")
    entries, key_bytes, value_bytes = (0, 0, 0) if found is None else map(int, found.groups())
    new = sum(rows.property_int_value(name) or 0 for name in _NEW_ENTRIES)
    new_bytes = (rows.property_int_value(_NEW_BYTES) or 0) if new else 0
    return (key_bytes + value_bytes + new_bytes) // max(entries + new, 1)
