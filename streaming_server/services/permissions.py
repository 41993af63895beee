"""What every call of every service needs: the permission table.

Rule: an id grants nothing. A call that names a snapshot, a lock, a scan or a transaction needs its role for their
tables, like a call that names the tables themselves. Resume tokens, versions and log offsets are only used together
with the name of their table.

The table also says which calls only the owner of what they name may make. The engine checks that where it finds it: see
`streaming_server/access/owners.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from scankv.model.errors import UsageError
from streaming_server.access.grants import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.message import Message

    from streaming_server.access.grants import Grants
    from streaming_server.engine.tables.tables import Tables
    from streaming_server.scan.admission.live_scans import ScanRegistry

READ, WRITE, ADMIN = Role.READ, Role.WRITE, Role.ADMIN


@dataclass(frozen=True, slots=True)
class NamedTable:
    """The table that a field of the request names.

    Attributes:
        field: The field.
        may_be_empty: Whether an empty field stands for all tables that the caller may use.
        exists: Whether the table must exist.
    """

    field: str = "table"
    may_be_empty: bool = False
    exists: bool = True

    @property
    def text(self) -> str:
        return f"the table in `{self.field}`" + (", if it is given" if self.may_be_empty else "")


@dataclass(frozen=True, slots=True)
class NamedTables:
    """The tables that a list in the request names.

    Attributes:
        field: The list.
    """

    field: str = "tables"

    @property
    def text(self) -> str:
        return f"every table in `{self.field}`"


@dataclass(frozen=True, slots=True)
class NamedById:
    """The tables of something that fields of the request name by ids.

    Attributes:
        what: What has the ids.
        fields: The fields. A dot stands between a message and its field.
        resolve: Returns the tables, given the resources of the server and the ids.
    """

    what: str
    fields: tuple[str, ...]
    resolve: Callable[..., Iterable[str]]

    @property
    def text(self) -> str:
        return f"every table of the {self.what} in {' and '.join(f'`{field}`' for field in self.fields)}"


@dataclass(frozen=True, slots=True)
class SomeTable:
    """Any table: the call needs its role in one grant or another."""

    text: str = "any table"


@dataclass(frozen=True, slots=True)
class EveryTable:
    """The server as a whole: the call needs its role in a grant for every table."""

    text: str = "every table (a grant for `*`)"


Scope: TypeAlias = NamedTable | NamedTables | NamedById | SomeTable | EveryTable


@dataclass(frozen=True, slots=True)
class Requirement:
    """A role, and the tables for which a call needs it."""

    role: Role
    scope: Scope


@dataclass(frozen=True, slots=True)
class Owned:
    """Something that belongs to the principal that has made it. Only it, or an admin of its tables, may make the call.

    Attributes:
        what: What it is.
        field: The field of the request that names it. A dot stands between a message and its field.
    """

    what: str
    field: str

    @property
    def text(self) -> str:
        return f"to be the owner of the {self.what} in `{self.field}`, if it has one, or `admin`"


@dataclass(frozen=True, slots=True)
class VisibleItems:
    """A list in the response, from which items of tables that the caller may not read are removed.

    Attributes:
        field: The list.
        tables: The field of an item with its table or tables. An item without tables is shown only to callers who may
            read every table.
        admin_field: A field of an item that becomes false unless the caller is an admin of its tables. Empty: none.
    """

    field: str
    tables: str
    admin_field: str = ""


@dataclass(frozen=True, slots=True)
class Permission:
    """What one call needs. Immutable.

    Attributes:
        requirements: All that the caller must have.
        visible: The lists of the response that are filtered.
        changes: Whether the call changes something. The audit log has a line for it.
        of_workers: Whether only processes of the server make the call, with their key.
        owned: What the request names that must belong to the caller, if it exists.
        owner_field: The field of the request that names the owner of what the call makes. A dot stands between a
            message and its field. Empty: it makes nothing that has an owner.
        owner_table: The field of the request with the table whose admins may name another principal there. If it is
            empty, only an admin of every table may.
    """

    requirements: tuple[Requirement, ...] = ()
    visible: tuple[VisibleItems, ...] = ()
    changes: bool = False
    of_workers: bool = False
    owned: tuple[Owned, ...] = ()
    owner_field: str = ""
    owner_table: str = "table"

    @property
    def is_open(self) -> bool:
        """Whether all callers may make the call, even without a token or a key."""
        return not self.requirements and not self.of_workers


@dataclass(frozen=True, slots=True)
class Resources:
    """Where ids are resolved to tables."""

    tables: Tables
    registry: ScanRegistry


def _snapshot_tables(resources: Resources, snapshot_id: str) -> Iterable[str]:
    table = resources.tables.snapshots.table_of(snapshot_id)
    return () if table is None else (table,)


def _lock_tables(resources: Resources, lock_id: str) -> Iterable[str]:
    return resources.tables.locks.tables_of(lock_id)


def _scan_tables(resources: Resources, scan_id: str) -> Iterable[str]:
    table = resources.registry.table_of(scan_id)
    return () if table is None else (table,)


def _token_tables(resources: Resources, token: str) -> Iterable[str]:
    return resources.tables.transactions.tables_of(token, "")


def _id_tables(resources: Resources, id_: str) -> Iterable[str]:
    return resources.tables.transactions.tables_of("", id_)


def _job_tables(resources: Resources, name: str) -> Iterable[str]:
    return (name,) if name else ()


def _transaction_tables(resources: Resources, token: str, id_: str) -> Iterable[str]:
    return resources.tables.transactions.tables_of(token, id_)


def _needs(
    role: Role, *scopes: Scope, changes: bool = False, owned: Iterable[Owned] = (), owner_field: str = ""
) -> Permission:
    requirements = tuple(Requirement(role, scope) for scope in scopes)
    return Permission(requirements, changes=changes or role > READ, owned=tuple(owned), owner_field=owner_field)


def _lists(field: str, tables: str, scope: Scope, *more: VisibleItems) -> Permission:
    return Permission((Requirement(READ, scope),), (VisibleItems(field, tables), *more))


_TABLE: Final = NamedTable()
_NEW: Final = NamedTable(exists=False)
_NAME: Final = NamedTable("name")
_FILTER: Final = NamedTable(may_be_empty=True)
_SNAPSHOT: Final = NamedById("snapshot", ("snapshot_id",), _snapshot_tables)
_PINNED: Final = NamedById("snapshot", ("snapshot.snapshot_id",), _snapshot_tables)
_LOCK: Final = NamedById("column lock", ("lock_id",), _lock_tables)
_TOKEN: Final = NamedById("transaction", ("token",), _token_tables)
_STAGED: Final = NamedById("transaction", ("transaction.token",), _token_tables)
_OWN_LOCK: Final = (Owned("column lock", "lock_id"),)
_NAMED_LOCK: Final = Owned("column lock", "column_locks")
_OWN_WRITE: Final = (_NAMED_LOCK, Owned("transaction", "transaction.token"), Owned("writer", "writer.id"))
_OWN_TOKEN: Final = (Owned("transaction", "token"),)
_OWN_CONSUMER: Final = (Owned("consumer", "consumer_id"),)
_OWN_SNAPSHOT: Final = (Owned("snapshot", "snapshot_id"),)

_OF_SCANKV: Final[dict[str, dict[str, Permission]]] = {
    "TableService": {
        "CreateTable": _needs(ADMIN, NamedTable("name", exists=False)),
        "DropTable": _needs(ADMIN, _NAME),
        "AlterTable": _needs(ADMIN, _NAME),
        "GetTable": _needs(READ, _NAME),
        "ListTables": _lists("tables", "name", SomeTable(), VisibleItems("damaged", "name")),
        "ListTableSizes": _lists("sizes", "name", SomeTable()),
    },
    "ScanService": {
        "ScanKv": _needs(
            READ,
            _TABLE,
            _PINNED,
            owned=[Owned("consumer", "log.consumer_id")],
            owner_field="log.consumer_principal",
        ),
        "ExplainScan": _needs(READ, _TABLE, _PINNED),
    },
    "LookupService": {
        "Lookup": _needs(READ, _TABLE),
        "Count": _needs(READ, _TABLE, _PINNED),
        "Aggregate": _needs(READ, _TABLE, _PINNED),
        "TopN": _needs(READ, _TABLE, _PINNED),
        "ExplainTopN": _needs(READ, _TABLE, _PINNED),
    },
    "WriteService": {
        "Upsert": _needs(WRITE, _TABLE, _STAGED, owned=_OWN_WRITE),
        "Delete": _needs(WRITE, _TABLE, _STAGED, owned=_OWN_WRITE),
        "OpenWriter": _needs(WRITE, _TABLE, owned=[Owned("writer", "id")], owner_field="principal"),
        # Whoever may write may also write what was there before, whose writer that was.
        "Undo": _needs(WRITE, _TABLE, owned=[_NAMED_LOCK]),
    },
    "LockService": {
        "LockColumns": _needs(WRITE, _TABLE, _LOCK, owned=_OWN_LOCK, owner_field="principal"),
        "RenewColumnLock": _needs(WRITE, _LOCK, owned=_OWN_LOCK),
        "ReleaseColumnLock": _needs(WRITE, _LOCK, owned=_OWN_LOCK),
        "ListColumnLocks": _lists("locks", "table", _FILTER),
    },
    "SnapshotService": {
        "PinSnapshot": _needs(
            READ,
            _TABLE,
            NamedById("snapshot", ("lease_id",), _snapshot_tables),
            NamedById("snapshot", ("same_view_as",), _snapshot_tables),
            changes=True,
            owned=[Owned("snapshot", "lease_id")],
            owner_field="principal",
        ),
        "PinSnapshots": _needs(READ, NamedTables(), changes=True),
        "RenewSnapshot": _needs(READ, _SNAPSHOT, changes=True, owned=_OWN_SNAPSHOT),
        "ReleaseSnapshot": _needs(READ, _SNAPSHOT, changes=True, owned=_OWN_SNAPSHOT),
        "ListSnapshots": _lists("snapshots", "table", _FILTER),
        "SplitSnapshot": _needs(READ, _SNAPSHOT),
        "UseSnapshot": _needs(READ, _TABLE, _SNAPSHOT),
    },
    "TransactionService": {
        "BeginTransaction": replace(
            _needs(
                WRITE,
                SomeTable(),
                NamedById("transaction", ("id",), _id_tables),
                # Not a `NamedTable`: all workers take part in the call, not only the owner of the table.
                NamedById("job", ("job.table",), _job_tables),
                owned=[Owned("transaction", "id")],
                owner_field="principal",
            ),
            # Not those of an open transaction of this id, which the new one may replace.
            owner_table="job.table",
        ),
        "GetForUpdate": _needs(WRITE, _TABLE, _TOKEN, owned=_OWN_TOKEN),
        "LookupStaged": Permission((Requirement(READ, _TABLE), Requirement(WRITE, _TOKEN)), owned=_OWN_TOKEN),
        "StageDeleteAll": _needs(WRITE, _TABLE, _TOKEN, owned=[_NAMED_LOCK, *_OWN_TOKEN]),
        "CommitTransaction": _needs(
            WRITE, NamedById("transaction", ("token", "id"), _transaction_tables), owned=_OWN_TOKEN
        ),
        "AbortTransaction": _needs(WRITE, _TOKEN, owned=_OWN_TOKEN),
        "GiveUpTransaction": _needs(ADMIN, _TOKEN),
        "ListTransactions": _lists("transactions", "tables", SomeTable()),
    },
    "BootstrapService": {
        "BeginBootstrap": _needs(ADMIN, _NEW),
        "StageRows": _needs(ADMIN, _NEW),
        "CommitBootstrap": _needs(ADMIN, _NEW),
        "AbortBootstrap": _needs(ADMIN, _NEW),
    },
    "PartitionService": {
        "CreatePartition": _needs(WRITE, _TABLE),
        "DropPartitions": _needs(WRITE, _TABLE),
        "ListPartitions": _needs(READ, _TABLE),
    },
    "ConsumerService": {
        "ListConsumers": _needs(READ, _TABLE),
        "CommitPosition": _needs(READ, _TABLE, changes=True, owned=_OWN_CONSUMER),
        "ResetConsumer": _needs(WRITE, _TABLE, owned=_OWN_CONSUMER),
        "DeleteConsumer": _needs(WRITE, _TABLE, owned=_OWN_CONSUMER),
    },
    "BackupService": {
        "CreateBackup": _needs(ADMIN, EveryTable()),
        "GetBackupStatus": _needs(READ, EveryTable()),
    },
    "AdminService": {
        "Stats": _needs(READ, EveryTable()),
        "Metrics": _needs(READ, EveryTable()),
        # It answers with what the caller may read.
        "Activity": _needs(READ, SomeTable()),
        "ListScans": Permission((Requirement(READ, SomeTable()),), (VisibleItems("scans", "table", "may_cancel"),)),
        "ListSlowCalls": Permission((Requirement(ADMIN, EveryTable()),)),
        "CancelScan": _needs(ADMIN, NamedById("scan", ("scan_id",), _scan_tables)),
        "CheckTable": _needs(READ, _TABLE),
        "AssignOwner": _needs(ADMIN, _TABLE),
    },
}

_REFLECTION: Final = _needs(READ, SomeTable())
_OPEN: Final = Permission()

PERMISSIONS: Final[dict[str, Permission]] = {
    **{
        f"scankv.v1.{service}/{method}": permission
        for service, methods in _OF_SCANKV.items()
        for method, permission in methods.items()
    },
    # Load balancers and process managers ask for health, and have no tokens.
    "grpc.health.v1.Health/Check": _OPEN,
    "grpc.health.v1.Health/Watch": _OPEN,
    "grpc.health.v1.Health/List": _OPEN,
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _REFLECTION,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _REFLECTION,
}
"""What each call needs, by `package.Service/Method`."""


_SERVICES_OF_WORKERS: Final = ("scankv.v1.WorkerService/", "scankv.v1.TabletService/")
_OF_WORKERS: Final = Permission(of_workers=True)
_LOCATES: Final = replace(PERMISSIONS["scankv.v1.TransactionService/CommitTransaction"], of_workers=True)


def permission_of(method: str) -> Permission:
    """Returns what a call needs. Raises UsageError for a call that the table lacks, which must not be served.

    The workers of a server have a key instead of tokens. Only to locate a transaction, they call each other in the name
    of the client that commits or aborts it, which then needs its role, too.
    """
    if method.startswith(_SERVICES_OF_WORKERS):
        return _LOCATES if method.endswith("/LocateTransaction") else _OF_WORKERS
    if method not in PERMISSIONS:
        raise UsageError(
            f"the permission table lacks the call {method}: add it to streaming_server/services/permissions.py"
        )
    return PERMISSIONS[method]


def ids_in(request: Message, fields: Iterable[str]) -> list[str]:
    """Returns the ids in fields of a request. Absent messages have empty ids."""
    return [str(reduce(getattr, field.split("."), cast("Any", request))) for field in fields]


def keep_visible(response: Any, permission: Permission, grants: Grants) -> None:  # noqa: ANN401  # a message
    """Removes from a response what the caller may not read, and the rights that the caller does not have."""
    everything = grants.allow_everywhere(READ)
    for visible in permission.visible:
        items = getattr(response, visible.field)
        for index in reversed(range(len(items))):
            item = items[index]
            value = getattr(item, visible.tables)
            tables = [value] if isinstance(value, str) else list(value)
            if not everything and not (tables and all(grants.allow(READ, table) for table in tables)):
                del items[index]
            elif visible.admin_field and not all(grants.allow(ADMIN, table) for table in tables):
                setattr(item, visible.admin_field, False)
