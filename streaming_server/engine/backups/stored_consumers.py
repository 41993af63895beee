"""Which consumers in a backup are those of a table itself, and which are those of its tablets?"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from scankv.model.errors import InvalidResumeToken
from streaming_server.scan.changes.consumer_progress import ConsumerProgress
from streaming_server.scan.changes.log_plan import table_digest

if TYPE_CHECKING:
    from scankv.model.tables.schema import TableDefinition
    from streaming_server.storage.backup.backup_manifest import StoredTable
    from streaming_server.storage.tables.consumers import ConsumerRecord


def consumers_by_part(table: StoredTable) -> dict[str, tuple[ConsumerRecord, ...]]:
    """Returns the consumers of a table and those of its tablets, by the incarnations of the table and the tablets.

    A consumer of a table with tablets has a record in each tablet, with a position in that tablet. If the position was
    damaged when it was backed up, the record is missing.
    """
    definition = table.definition
    if definition.tablets == 1:
        return {definition.incarnation: table.consumers}
    return {
        part.incarnation: tuple(one for one in table.consumers if progress_of(one, part) is not None)
        for part in definition.parts
    }


def progress_of(consumer: ConsumerRecord, definition: TableDefinition) -> ConsumerProgress | None:
    """Returns the position of a consumer of a table or tablet. None: it is that of another one, or damaged."""
    with suppress(InvalidResumeToken):
        return ConsumerProgress.from_token(consumer.token, table_digest(definition))
    return None
