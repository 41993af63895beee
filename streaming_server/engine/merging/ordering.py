"""Orders rows by age, as some of their columns give it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_server.arrays.sort_codes import sort_codes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streaming_server.engine.functions.function import Places
    from streaming_server.engine.merging.rows import CurrentRows, WrittenRows


def newness(standing: CurrentRows, written: WrittenRows, columns: Sequence[str]) -> tuple[Places, Places]:
    """Numbers rows in the order of some columns, most significant first, null lowest. The numbers begin at 0.

    Returns:
        The numbers of the current rows, and those of the written rows.
    """
    numbers: Places | None = None
    for name in columns:
        old = standing.columns[name]
        values = sort_codes(pa.concat_arrays([old, written.column(name, old.type)]))
        # Ranks begin at 1, with null after all others.
        ranks = pc.rank(values, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
        if values.null_count:
            ranks[values.is_null().to_numpy(zero_copy_only=False)] = 0
        if numbers is not None:
            # Combined numbers are below the square of the number of rows, so they fit. `unique` makes them dense again.
            ranks = np.unique(numbers * (len(ranks) + 1) + ranks, return_inverse=True)[1]
        numbers = ranks
    assert numbers is not None
    return numbers[: written.count], numbers[written.count :]
