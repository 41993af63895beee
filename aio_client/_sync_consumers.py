"""The changes of a table and their consumers, for code that blocks; part of `aio_client.sync`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aio_client._consumers import Consumer
    from aio_client._runner import Runner
    from aio_client._table import Table as AsyncTable
    from table_model.log_offsets import LogOffsets
    from table_model.log_positions import StartFrom


class ConsumersOfTable:
    """The consumers of a table. Thread-safe."""

    _runner: Runner
    _table: AsyncTable

    def consumers(self, pattern: str | None = None) -> list[Consumer]:
        """The consumers of the table, by id, ascending. See `aio_client.Table.consumers`."""
        return self._runner.call(self._table.consumers, pattern)

    def reset_consumer(self, consumer_id: str, start: StartFrom, *, clamp: bool = False) -> LogOffsets:
        """Moves a consumer to any place. See `aio_client.Table.reset_consumer`."""
        return self._runner.call(partial(self._table.reset_consumer, consumer_id, start, clamp=clamp))

    def delete_consumer(self, consumer_id: str) -> None:
        """Forgets a consumer. See `aio_client.Table.delete_consumer`."""
        self._runner.call(self._table.delete_consumer, consumer_id)

    def delete_consumers(self, pattern: str) -> list[str]:
        """Forgets all consumers whose id matches. See `aio_client.Table.delete_consumers`."""
        return self._runner.call(self._table.delete_consumers, pattern)
