"""Compares the stored table of a stopped server with the model: rows, changelog, and the bucket of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.storage.changelog.records import RowKind
from tests.support.offline import check_bucket, offline_table, widened
from tests.support.tables import exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.model.model_table import ModelTable, Row
    from tests.support.offline import OfflineBucket


def check_stored_table(data_dir: Path, name: str, model: ModelTable) -> None:
    """Checks that every bucket has its rows of the model, and its changelog all changes of each key.

    `check_bucket` checks offsets, commit times and the count of live rows, and replays the changelog.
    """
    with offline_table(data_dir, name) as buckets:
        for number, offline in enumerate(buckets):
            assert list(model.by_key(check_bucket(offline)).items()) == list(model.rows_in(number).items())
            found: dict[Row, list[tuple[str, Row]]] = {}
            for _, kind, row in stored_changes(offline):
                found.setdefault(model.key_of(row, model.schema.names), []).append((kind, row))
            expected = dict(model.changes_in(number))
            assert found == (expected if model.changelog != "none" else {})
            assert model.changelog == "full" or offline.bucket.state.count == sum(map(len, expected.values()))


def stored_changes(offline: OfflineBucket) -> Iterator[tuple[int, str, Row]]:
    """Returns the changes of a bucket: the offset, the symbol of the kind, and the row in the current columns."""
    for record in offline.log():
        rows = exact_rows(widened(record.changes.rows, offline.codec.schema))
        for place, (kind, row) in enumerate(zip(record.changes.kinds, rows, strict=True)):
            yield record.offset + place, RowKind(int(kind)).symbol, row
