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

    A consumer of a table with tablets may have a record in each tablet, with a position in that tablet. All others are
    those of the table itself, even if their positions are of an earlier incarnation of it.
    """
    definition = table.definition
    if definition.tablets == 1:
        return {definition.incarnation: table.consumers}
    found = {
        tablet.incarnation: tuple(one for one in table.consumers if progress_of(one, tablet) is not None)
        for tablet in definition.all_tablets
    }
    in_tablets = {id(one) for each in found.values() for one in each}
    return {definition.incarnation: tuple(one for one in table.consumers if id(one) not in in_tablets), **found}


def progress_of(consumer: ConsumerRecord, definition: TableDefinition) -> ConsumerProgress | None:
    """Returns the position of a consumer of a table or tablet. None: it is that of another one, or damaged."""
    with suppress(InvalidResumeToken):
        return ConsumerProgress.from_token(consumer.token, table_digest(definition))
    return None
