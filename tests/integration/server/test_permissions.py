"""The permission matrix: every call of every service, with every role, for several table patterns."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pytest

from scankv.model.errors import UsageError
from scankv.v1 import scan_pb2
from streaming_server.access.grants import Role
from streaming_server.services.permissions import (
    PERMISSIONS,
    EveryTable,
    NamedById,
    NamedTable,
    NamedTables,
    permission_of,
)
from tests.support.secured import (
    METHODS,
    METHODS_OF_WORKERS,
    SecuredServer,
    TokenCaller,
    TokenIssuer,
    code_before_message,
    request_type,
)
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from google.protobuf.message import Message

SERVICES = "scankv.v1"
# A server of one process has no WorkerService.
OF_TABLETS = [method for method in METHODS_OF_WORKERS if method.startswith("scankv.v1.TabletService/")]
CHECKED = sorted(method for method in METHODS if not PERMISSIONS[method].is_open)

# Every other call needs more than `read`.
READING = {
    "AdminService/Activity",
    "AdminService/CheckTable",
    "AdminService/ListScans",
    "AdminService/Metrics",
    "AdminService/Stats",
    "BackupService/GetBackupStatus",
    "ConsumerService/CommitPosition",
    "ConsumerService/ListConsumers",
    "LockService/ListColumnLocks",
    "LookupService/Aggregate",
    "LookupService/Count",
    "LookupService/ExplainTopN",
    "LookupService/Lookup",
    "LookupService/TopN",
    "PartitionService/ListPartitions",
    "ScanService/ExplainScan",
    "ScanService/ScanKv",
    "SnapshotService/ListSnapshots",
    "SnapshotService/PinSnapshot",
    "SnapshotService/PinSnapshots",
    "SnapshotService/ReleaseSnapshot",
    "SnapshotService/RenewSnapshot",
    "SnapshotService/SplitSnapshot",
    "SnapshotService/UseSnapshot",
    "TableService/GetTable",
    "TableService/ListTableSizes",
    "TableService/ListTables",
    "TransactionService/ListTransactions",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    directory = tmp_path_factory.mktemp("secured")
    issuer = TokenIssuer(directory / "tokens")
    with (
        ServerProcess(directory / "data", "--tokens", str(issuer.path)) as server,
        SecuredServer(server.url, issuer) as secured,
    ):
        yield secured


class MatrixTarget:
    """A table of its own, and what a call may name by an id."""

    def __init__(self, server: SecuredServer, primary_key: Sequence[str] = ("k",)) -> None:
        self.table = f"matrix.t{uuid.uuid4().hex}"
        self._root = server.root
        self._ids: dict[str, str] = {}
        self._calls = ExitStack()
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        self._root(
            f"{SERVICES}.TableService/CreateTable",
            name=self.table,
            arrow_schema=schema.serialize().to_pybytes(),
            primary_key=primary_key,
            buckets=1,
        )

    def id_of(self, what: str) -> str:
        """Returns the id of a snapshot, a column lock, a transaction or a scan of the table, or the table of a job."""
        if what not in self._ids:
            self._ids[what] = {
                "snapshot": self._pin,
                "column lock": self._lock,
                "transaction": self._begin,
                "scan": self._scan,
                "job": self._name,
            }[what]()
        return self._ids[what]

    def _name(self) -> str:
        return self.table

    def _pin(self) -> str:
        pinned = self._root(f"{SERVICES}.SnapshotService/PinSnapshot", table=self.table)
        return str(pinned.snapshot.snapshot_id)

    def _lock(self) -> str:
        locked = self._root(
            f"{SERVICES}.LockService/LockColumns", table=self.table, columns=["v"], owner="o", lock_id=uuid.uuid4().hex
        )
        return str(locked.lock.lock_id)

    def _begin(self) -> str:
        service = f"{SERVICES}.TransactionService"
        token = str(self._root(f"{service}/BeginTransaction", id=self.table, attempt="1", conflict_mode=1).token)
        staged = self._root(
            f"{SERVICES}.WriteService/Upsert",
            table=self.table,
            rows=_rows(),
            schema_id=0,
            transaction={"token": token, "part": "p", "sequence": 0},
        )
        assert staged.rows == 1
        return token

    def _scan(self) -> str:
        request = scan_pb2.ScanKvRequest(table=self.table, log=scan_pb2.Changelog(latest=scan_pb2.LogLatest()))
        call = self._root.stream(f"{SERVICES}.ScanService/ScanKv", request)
        self._calls.callback(call.cancel)
        return str(next(call).header.scan_id)

    def request(self, method: str) -> Message:
        """Returns a request that names the table and what belongs to it, in all fields that the permission names."""
        request: Any = request_type(method)()
        for requirement in PERMISSIONS[method].requirements:
            scope = requirement.scope
            if isinstance(scope, NamedTable):
                setattr(request, scope.field, self.table)
            if isinstance(scope, NamedTables):
                getattr(request, scope.field).append(self.table)
            if isinstance(scope, NamedById):
                for field in scope.fields:
                    *messages, last = field.split(".")
                    holder = request
                    for message in messages:
                        holder = getattr(holder, message)
                    id_ = self.id_of(scope.what)
                    setattr(holder, last, self.table if last == "id" else id_)
        if "attempt" in request.DESCRIPTOR.fields_by_name:
            request.attempt = "2"
        return request  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.close()
        for lock in (self._ids.get("transaction"),):
            if lock is not None:
                self._root.code(f"{SERVICES}.TransactionService/AbortTransaction", token=lock)


def _rows() -> bytes:
    batch = pa.record_batch({"k": pa.array([1], pa.int64()), "v": pa.array([1], pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def is_allowed(method: str, role: Role, pattern: str, table: str) -> bool:
    """What a call with one grant must be, told from the permission table alone, for things of another principal."""
    scopes = [requirement.scope for requirement in PERMISSIONS[method].requirements]
    named = {field for scope in scopes if isinstance(scope, NamedById) for field in scope.fields}
    if role < Role.ADMIN and any(each.field in named for each in PERMISSIONS[method].owned):
        return False
    for requirement in PERMISSIONS[method].requirements:
        scope = requirement.scope
        if role < requirement.role:
            return False
        if isinstance(scope, NamedTable | NamedTables | NamedById) and not fnmatchcase(table, pattern):
            return False
        if isinstance(scope, EveryTable) and pattern not in {"*", "*.*"}:
            return False
    return True


def test_the_table_has_exactly_the_calls_that_are_served() -> None:
    assert sorted(PERMISSIONS) == sorted(METHODS)


def test_a_call_that_the_table_lacks_is_not_served() -> None:
    with pytest.raises(UsageError, match=r"the permission table lacks the call scankv.v1.NewService/New"):
        permission_of("scankv.v1.NewService/New")


def test_only_health_is_open() -> None:
    assert {method for method in METHODS if PERMISSIONS[method].is_open} == {
        f"grpc.health.v1.Health/{method}" for method in ("Check", "Watch", "List")
    }


def test_every_field_of_the_table_exists_in_its_request() -> None:
    for method, permission in PERMISSIONS.items():
        for requirement in permission.requirements:
            scope = requirement.scope
            fields = (scope.field,) if isinstance(scope, NamedTable | NamedTables) else getattr(scope, "fields", ())
            for field in fields:
                descriptor: Any = METHODS[method].input_type
                for name in field.split("."):
                    assert name in descriptor.fields_by_name, (method, field)
                    descriptor = descriptor.fields_by_name[name].message_type


def test_what_a_request_can_name_is_checked() -> None:
    """A field with the name of a table or of an id is in the permission table, in whatever request it is."""
    naming = {"table", "snapshot_id", "lock_id", "scan_id", "token", "lease_id", "same_view_as"}
    nested = {"snapshot": ("snapshot_id",), "transaction": ("token",), "job": ("table",)}
    for method in CHECKED:
        scopes = [requirement.scope for requirement in PERMISSIONS[method].requirements]
        checked = {field for scope in scopes for field in getattr(scope, "fields", ())}
        checked |= {scope.field for scope in scopes if isinstance(scope, NamedTable)}
        for field in METHODS[method].input_type.fields:
            if field.name in naming:
                assert field.name in checked, (method, field.name)
            for name in nested.get(field.name, ()):
                assert f"{field.name}.{name}" in checked, (method, field.name)


def test_only_these_calls_need_no_more_than_read() -> None:
    reading = {
        method.removeprefix(f"{SERVICES}.")
        for method in METHODS
        if method.startswith(f"{SERVICES}.")
        and all(requirement.role == Role.READ for requirement in PERMISSIONS[method].requirements)
    }
    assert reading == READING


@pytest.fixture(scope="module")
def caller_with(secured: SecuredServer) -> Callable[[str], TokenCaller]:
    """Returns the same caller for the same grant: the server reads its tokens again for each new one."""
    return cache(lambda grant: secured.caller(grant, principal="another"))


@pytest.mark.parametrize("method", CHECKED)
def test_a_call_is_answered_only_with_its_role_for_its_tables(
    secured: SecuredServer, caller_with: Callable[[str], TokenCaller], method: str
) -> None:
    allowed, refused = 0, 0
    with MatrixTarget(secured) as denied:
        for pattern in (denied.table, "matrix.*", "*", "other.*"):
            for role in Role:
                caller = caller_with(f"{role.text}:{pattern}")
                if is_allowed(method, role, pattern, denied.table):
                    if PERMISSIONS[method].changes or method.endswith("/ReleaseSnapshot"):
                        # The call may drop or end its target, so it has one of its own.
                        with MatrixTarget(secured) as target:
                            name = target.table if pattern == denied.table else pattern
                            its_caller = caller_with(f"{role.text}:{name}")
                            code = its_caller.code(method, target.request(method))
                    else:
                        code = caller.code(method, denied.request(method))
                    assert code not in {"PERMISSION_DENIED", "UNAUTHENTICATED", "UNKNOWN", "INTERNAL"}, (role, pattern)
                    allowed += 1
                    if pattern != denied.table:
                        break  # What a role allows, those above it allow, too: this is seen with the first pattern.
                else:
                    answer = caller.refusal(method, denied.request(method))
                    assert answer is not None
                    assert (answer.code, answer.reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED"), (role, pattern)
                    assert answer.details["role"] in answer.message
                    refused += 1
    assert allowed
    filtered = (
        "/Activity",
        "/ListTables",
        "/ListTableSizes",
        "/ListScans",
        "/ListTransactions",
        "/ServerReflectionInfo",
    )
    assert refused or method.endswith(filtered)


@pytest.mark.parametrize("method", CHECKED)
def test_a_call_without_a_valid_token_is_refused_with_one_message(secured: SecuredServer, method: str) -> None:
    answers = {
        (answer.code, answer.reason, answer.message, tuple(answer.details))
        for token in (None, "", "x", "skv_x_y", f"{secured.issuer.root}x", secured.issuer.root[:-1])
        if (answer := TokenCaller(secured.channel, token).refusal(method)) is not None
    }
    ((code, reason, message, details),) = answers
    assert (code, reason, details) == ("UNAUTHENTICATED", "UNAUTHENTICATED", ())
    assert "unknown" not in message


def test_a_call_without_a_token_is_refused_before_its_message_is_read(secured: SecuredServer) -> None:
    for method in (*CHECKED, *OF_TABLETS):
        for metadata in ((), TokenCaller(secured.channel, "x").metadata, (("scankv-forwarded", "x" * 64),)):
            assert code_before_message(secured.channel, method, metadata) == "UNAUTHENTICATED", method


def test_a_call_between_processes_is_refused_with_any_token_before_its_message_is_read(secured: SecuredServer) -> None:
    for method in OF_TABLETS:
        assert code_before_message(secured.channel, method, secured.root.metadata) == "PERMISSION_DENIED", method


def test_health_is_open_to_everybody(secured: SecuredServer) -> None:
    nobody = TokenCaller(secured.channel)
    for method in ("Check", "Watch"):
        assert nobody(f"grpc.health.v1.Health/{method}").status == 1


def test_lists_show_only_what_the_caller_may_read(secured: SecuredServer) -> None:
    with MatrixTarget(secured) as mine, MatrixTarget(secured) as foreign:
        for target in (mine, foreign):
            # The writes of the transaction come before the lock, which would refuse them.
            for what in ("snapshot", "transaction", "column lock", "scan"):
                target.id_of(what)
        for caller, both in ((secured.caller(f"read:{mine.table}"), False), (secured.root, True)):
            shown = {
                "tables": [t.name for t in caller(f"{SERVICES}.TableService/ListTables").tables],
                "snapshots": [s.table for s in caller(f"{SERVICES}.SnapshotService/ListSnapshots").snapshots],
                "locks": [lock.table for lock in caller(f"{SERVICES}.LockService/ListColumnLocks").locks],
                "scans": [scan.table for scan in caller(f"{SERVICES}.AdminService/ListScans").scans],
                "transactions": [
                    table
                    for each in caller(f"{SERVICES}.TransactionService/ListTransactions").transactions
                    for table in each.tables
                ],
            }
            for what, tables in shown.items():
                assert mine.table in tables, what
                assert (foreign.table in tables) is both, what
                if not both:
                    assert set(tables) == {mine.table}, what


def test_a_list_of_scans_says_which_the_caller_may_cancel(secured: SecuredServer) -> None:
    with MatrixTarget(secured) as mine, MatrixTarget(secured) as other:
        for target in (mine, other):
            target.id_of("scan")
        for grants, expected in (
            ((f"admin:{mine.table}", f"read:{other.table}"), {mine.table: True, other.table: False}),
            (("read:*",), {mine.table: False, other.table: False}),
            (("admin:*",), {mine.table: True, other.table: True}),
        ):
            scans = secured.caller(*grants)(f"{SERVICES}.AdminService/ListScans").scans
            assert {scan.table: scan.may_cancel for scan in scans} == expected


def test_rows_are_appended_and_read_with_the_roles_of_other_tables(secured: SecuredServer) -> None:
    with MatrixTarget(secured, primary_key=()) as log:
        append = f"{SERVICES}.WriteService/Upsert"
        for grant, writes, reads in (
            (f"write:{log.table}", "OK", "OK"),
            (f"read:{log.table}", "PERMISSION_DENIED", "OK"),
            ("admin:other.*", "PERMISSION_DENIED", "PERMISSION_DENIED"),
        ):
            caller = secured.caller(grant)
            assert caller.code(append, table=log.table, rows=_rows()) == writes, grant
            assert caller.code(f"{SERVICES}.LookupService/Count", table=log.table) == reads, grant
        assert secured.root(f"{SERVICES}.LookupService/Count", table=log.table).rows == 1


def test_a_transaction_over_a_foreign_table_is_hidden(secured: SecuredServer) -> None:
    with MatrixTarget(secured) as mine, MatrixTarget(secured) as foreign:
        token = mine.id_of("transaction")
        caller = secured.caller(f"admin:{mine.table}")
        listing = f"{SERVICES}.TransactionService/ListTransactions"
        assert [each.token for each in caller(listing).transactions] == [token]
        secured.root(
            f"{SERVICES}.WriteService/Upsert",
            table=foreign.table,
            rows=_rows(),
            transaction={"token": token, "part": "q", "sequence": 0},
        )
        assert not caller(listing).transactions
        # It cannot be committed, aborted or begun again under its id either.
        calls: tuple[tuple[str, dict[str, Any]], ...] = (
            ("CommitTransaction", {"token": token}),
            ("CommitTransaction", {"token": "x", "id": mine.table}),
            ("AbortTransaction", {"token": token}),
            ("BeginTransaction", {"id": mine.table, "attempt": "2"}),
        )
        for method, fields in calls:
            assert caller.code(f"{SERVICES}.TransactionService/{method}", **fields) == "PERMISSION_DENIED", method


def test_a_foreign_snapshot_grants_nothing_and_its_table_is_not_named(secured: SecuredServer) -> None:
    with MatrixTarget(secured) as mine, MatrixTarget(secured) as foreign:
        caller = secured.caller(f"admin:{mine.table}")
        pinned = {"snapshot_id": foreign.id_of("snapshot")}
        for method, fields in (
            ("ScanService/ScanKv", {"table": mine.table, "snapshot": pinned}),
            ("LookupService/Count", {"table": mine.table, "snapshot": pinned}),
            ("SnapshotService/SplitSnapshot", pinned),
            ("SnapshotService/PinSnapshot", {"table": mine.table, "lease_id": pinned["snapshot_id"]}),
            ("SnapshotService/PinSnapshot", {"table": mine.table, "same_view_as": pinned["snapshot_id"]}),
        ):
            refused = caller.refusal(f"{SERVICES}.{method}", **fields)
            assert refused is not None
            assert refused.code == "PERMISSION_DENIED", method
            assert foreign.table not in f"{refused.message} {refused.details}"


def test_a_foreign_resume_token_grants_nothing(secured: SecuredServer) -> None:
    with MatrixTarget(secured) as mine, MatrixTarget(secured) as foreign:
        secured.root(f"{SERVICES}.WriteService/Upsert", table=foreign.table, rows=_rows())
        scan = f"{SERVICES}.ScanService/ScanKv"
        call = secured.root.stream(scan, scan_pb2.ScanKvRequest(table=foreign.table, live_kv=scan_pb2.LiveKv()))
        token = next(message.chunk.resume_token for message in call if message.HasField("chunk"))
        caller = secured.caller(f"read:{mine.table}")
        assert caller.code(scan, table=foreign.table, resume_token=token) == "PERMISSION_DENIED"
        refused = caller.refusal(scan, table=mine.table, live_kv={}, resume_token=token)
        assert refused is not None
        assert refused.reason == "INVALID_RESUME_TOKEN"
        assert foreign.table not in refused.message


def test_a_missing_table_is_told_from_a_foreign_one_only_where_the_caller_may_read(secured: SecuredServer) -> None:
    with MatrixTarget(secured) as target:
        alike = target.table[:-1]
        get = f"{SERVICES}.TableService/GetTable"
        secured.root(f"{SERVICES}.TableService/GetTable", name=target.table)
        assert target.table in secured.root.refusal(get, name=alike).message  # type: ignore[union-attr]
        caller = secured.caller(f"read:{alike}")
        refused = caller.refusal(get, name=alike)
        assert refused is not None
        assert refused.reason == "TABLE_NOT_FOUND"
        assert target.table not in refused.message
        assert caller.code(get, name=target.table) == caller.code(get, name="matrix.none") == "PERMISSION_DENIED"


def test_patterns_select_tables_whose_names_differ_in_case_or_are_barely_valid(
    secured: SecuredServer,
) -> None:
    database = f"d{uuid.uuid4().hex}"
    long = f"{database}.{'t' * 128}"
    names = [f"{database}.t", f"{database.upper()}.t", f"{database}.T", f"{database}.t-", f"{database}.__", long]
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)]).serialize().to_pybytes()
    for name in names:
        secured.root(
            f"{SERVICES}.TableService/CreateTable", name=name, arrow_schema=schema, primary_key=["k"], buckets=1
        )
    expected = {
        "*": names,
        f"{database}.*": [name for name in names if name.startswith(f"{database}.")],
        f"{database.upper()}.*": [names[1]],
        "*.t": names[:2],
        "*.T": [names[2]],
        f"{database}.?": [names[0], names[2]],
        f"{database}.[!t]": [names[2]],
        f"{database}.?*": [name for name in names if name.startswith(f"{database}.")],
        f"{database}.[a-z]-": [names[3]],
        f"{database}._*": [names[4]],
        long: [long],
        f"{long}t": [],
        f"{database}": [],
        f"{database}.t\u00e9": [],
    }
    for pattern, visible in expected.items():
        caller = secured.caller(f"read:{pattern}")
        listed = [table.name for table in caller(f"{SERVICES}.TableService/ListTables").tables]
        assert {name for name in listed if name in names} == set(visible), pattern
        for name in names:
            code = caller.code(f"{SERVICES}.TableService/GetTable", name=name)
            assert code == ("OK" if name in visible else "PERMISSION_DENIED"), (pattern, name)
    for name in names:
        secured.root(f"{SERVICES}.TableService/DropTable", name=name)
