"""The blocking client: for scripts, threads, notebooks, and libraries without an event loop.

    from scankv.sync import connect

    client = connect("localhost:7070")
    for rows in client.table("game.scores").scan():
        ...

Names and meanings are those of `scankv`. A client runs an event loop in a thread of its own, so it works next to a
running event loop. The client and everything that it makes may be used from any thread. A client closes with `close`,
at the end of `with`, when it and its tables, scans and streams are dropped, and when the interpreter exits. Connect
after a fork, not before it.
"""

from aio_client._sync.generated import (
    Client,
    ColumnLock,
    Scan,
    Snapshot,
    SnapshotGroup,
    SqlQuery,
    Table,
    Transaction,
    TransactionPart,
    Writer,
    connect,
)
from aio_client._sync.stream import ScanStream
from aio_client._sync.watch import TopNWatch
from scankv.model.public_names import set_public_module

__all__ = [
    "Client",
    "ColumnLock",
    "Scan",
    "ScanStream",
    "Snapshot",
    "SnapshotGroup",
    "SqlQuery",
    "Table",
    "TopNWatch",
    "Transaction",
    "TransactionPart",
    "Writer",
    "connect",
]

set_public_module("scankv.sync", globals(), __all__)
