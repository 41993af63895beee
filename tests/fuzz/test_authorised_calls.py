"""Every method with random requests of callers who lack grants: they see and change nothing of other tables.

The requests name foreign tables, and have the ids, tokens and positions that an administrator got for them.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import grpc
import pyarrow as pa
import pytest

from aio_client import ScanSource, StartFrom, StopAt, sync
from scankv.v1 import scan_pb2, snapshot_pb2, table_pb2
from streaming_server.services.permissions import permission_of
from tests.fuzz.calls import Method, call, check_outcome, methods_of
from tests.fuzz.messages import make_request
from tests.fuzz.test_every_call import open_channel
from tests.fuzz.world import TABLES, FuzzedTables
from tests.support.secured import TokenIssuer
from tests.support.server_process import ServerProcess
from tests.support.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzz.calls import CallResult
    from tests.fuzz.messages import Known

CALLS: Final = int(os.environ.get("SCANKV_FUZZED_CALLS", "1000000")) // 10
"""How many calls `make soak` makes."""
FEW_CALLS: Final = 400
"""How many calls of each caller `make test` makes."""
AT_ONCE: Final = 8
MOST_OPEN_BYTES: Final = 4096
"""The most bytes of a call that needs no token. A larger one ends a connection without a call with a valid token."""

SECRET: Final = b"T0P-S3CRET"
VAULT: Final = "vault.rows"
HIDDEN: Final = "vault.h1dden"
"""No request has its name."""
SECRETS: Final = (SECRET, VAULT.encode(), HIDDEN.encode(), b"classified_column")
SCHEMA: Final = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("classified_column", pa.string()), ("n", pa.int64())]
)
ROWS: Final = 300

CALLERS: Final = {
    "without a token": (),
    "who reads one table": ("read:fuzz.plain",),
    "who reads other tables": ("read:fuzz.*",),
    "who writes to other tables": ("write:fuzz.*", "read:fuzz.?????"),
    "who administers other tables": ("admin:fuzz.*", "admin:vault", "admin:vault.row", "admin:vault.rows?"),
}
"""The grants of each caller. None is for a table of the vault."""


class Vault:
    """Tables for which no caller has a grant, in use by an administrator, who notices every change.

    Attributes:
        known: The ids, tokens and positions of the administrator, by the fields of requests that may have them.
    """

    def __init__(self, url: str, token: str, stack: ExitStack) -> None:
        self._wire = stack.enter_context(Wire(url, token))
        self._client = client = stack.enter_context(sync.connect(url, token=token))
        for name in (VAULT, HIDDEN):
            table = client.create_table(name, SCHEMA, primary_key=["k"], buckets=2, indexes=["n"])
            table.upsert([{"k": k, "classified_column": f"{SECRET.decode()} {k}", "n": k % 7} for k in range(ROWS)])
            table.delete([5])
        self._table = client.table(VAULT)
        self.known: Known = {"table": [VAULT], "name": [VAULT]}
        finder = FuzzedTables.__new__(FuzzedTables)
        finder.known = self.known
        self._lock = stack.enter_context(self._table.lock_columns(["n"], owner="vault", ttl=3600))
        self.known["lock_id"] = self.known["column_locks"] = [self._lock.id]
        snapshot = stack.enter_context(self._table.snapshot(ttl=3600))
        finder.harvest(self._wire.pin(VAULT, ttl_millis=3_600_000, lease_id="vault-lease"))
        self.known["snapshot_id"] = [snapshot.id, "vault-lease"]
        self.known["lease_id"] = self.known["same_view_as"] = [*self.known["snapshot_id"]]
        for source in (
            scan_pb2.ScanKvRequest(table=VAULT, chunk=scan_pb2.ChunkBounds(max_rows=7)),
            scan_pb2.ScanKvRequest(table=VAULT, log=scan_pb2.Changelog(full=scan_pb2.LogFull(), consumer_id="vault",
                                                                       stop_latest=scan_pb2.LogLatest())),
        ):  # fmt: skip
            for response in self._wire.scans.ScanKv(source, timeout=30):
                finder.harvest(response)
        split = snapshot_pb2.SplitSnapshotRequest(snapshot_id=snapshot.id, splits=3)
        finder.harvest(self._wire.snapshots.SplitSnapshot(split))
        secret = {"k": 1, "classified_column": SECRET.decode()}
        with client.transaction(id="vault-committed") as committed:
            committed.upsert(self._table, [secret], columns=list(secret))
        self._transaction = stack.enter_context(client.transaction(id="vault-open", ttl=3600))
        self._transaction.upsert(self._table, [secret | {"k": ROWS}], columns=list(secret))
        # Callers have grants for this one, but no request has its name.
        shared = client.create_table("fuzz.shared", SCHEMA.remove(1), primary_key=["k"], buckets=1)
        self._transaction.upsert(shared, [{"k": 1, "n": 1}])
        self.known["token"] = [self._transaction.token]
        self.known["id"] = ["vault-committed", "vault-open"]
        self.known["consumer_id"] = self.known["owner"] = self.known["writer"] = ["vault"]
        following = scan_pb2.ScanKvRequest(table=VAULT, log=scan_pb2.Changelog(latest=scan_pb2.LogLatest()))
        self._stream = self._wire.scans.ScanKv(following)
        stack.callback(self._stream.cancel)
        assert next(self._stream).HasField("header")
        self.known["scan_id"] = [scan.scan_id for scan in client.live_scans()]
        self._state = self.state()

    def state(self) -> dict[str, Any]:
        """Returns everything that a call may change, as the administrator sees it."""
        client, table = self._client, self._table
        changes = table.scan().with_source(ScanSource.LOG).start_from(StartFrom.EARLIEST)
        changes = changes.stop_at(StopAt.LATEST).with_row_kind()
        return {
            "rows": {name: client.table(name).scan().to_arrow().sort_by("k").to_pylist() for name in (VAULT, HIDDEN)},
            "changes": changes.to_arrow().num_rows,
            "definitions": [definition(self._wire, name) for name in (VAULT, HIDDEN)],
            "snapshots": sorted(each.id for each in client.snapshots(VAULT)),
            "consumers": [(each.id, each.log_offsets, each.live) for each in table.consumers()],
            "locks": [(each.id, each.owner) for each in client.column_locks(VAULT)],
            "scans": sorted(scan.scan_id for scan in client.live_scans() if scan.table == VAULT),
            "transactions": sorted((each.token, each.rows) for each in client.transactions() if VAULT in each.tables),
        }

    def check(self) -> None:
        """Asserts that nothing has changed since the beginning."""
        assert self.state() == self._state

    def commit(self) -> None:
        """Asserts that the transaction that was open all the time can be committed."""
        self._transaction.commit()
        assert self._table.get(ROWS) == {"k": ROWS, "classified_column": SECRET.decode(), "n": None}


def definition(wire: Wire, table: str) -> str:
    """Returns the definition of a table as text."""
    return str(wire.tables.GetTable(table_pb2.GetTableRequest(name=table), timeout=30))


class AuthorisedServer:
    """A server that asks for tokens, with the vault, and tables for which some callers have grants."""

    def __init__(self, process: ServerProcess, issuer: TokenIssuer, stack: ExitStack) -> None:
        self.process = process
        self.issuer = issuer
        self.url = process.url
        self.world = FuzzedTables(process.url, issuer.root)
        self.vault = Vault(process.url, issuer.root, stack)
        self.tokens = {name: issuer.create(*grants) if grants else None for name, grants in CALLERS.items()}

    def known(self) -> Known:
        """Returns the values for requests: those of the tables with grants, and those of the vault."""
        known = self.world.known
        return known | {name: [*known.get(name, ()), *foreign] for name, foreign in self.vault.known.items()}

    def granted_rows(self) -> dict[str, list[Any]]:
        """Returns the rows and the definition of each table for which callers have grants."""
        root = self.issuer.root
        with sync.connect(self.url, token=root) as client, Wire(self.url, root) as wire:
            tables = {name: client.table(name) for name in TABLES}
            return {
                name: [definition(wire, name), sorted(map(str, table.scan().to_arrow().to_pylist()))]
                for name, table in tables.items()
            }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorisedServer]:
    directory = tmp_path_factory.mktemp("authorised")
    issuer = TokenIssuer(directory / "tokens")
    with (
        ServerProcess(directory / "data", "--tokens", str(issuer.path)) as process,
        ExitStack() as stack,
    ):
        yield AuthorisedServer(process, issuer, stack)


def check_answer(method: Method, request: bytes, outcome: CallResult) -> None:
    """Asserts that an answer has nothing of the vault that its request did not have."""
    if method.path.endswith("/ListSnapshots"):
        answers: list[Any] = list(outcome.responses)
        for snapshot in (each for answer in answers for each in answer.snapshots):
            # Callers choose names and ids themselves, so an earlier request may have named a snapshot so.
            snapshot.ClearField("name")
            snapshot.ClearField("snapshot_id")
    shown = [response.SerializeToString() for response in outcome.responses]
    if outcome.refusal is not None:
        refusal = outcome.refusal
        shown += [refusal.message.encode(), *(value.encode() for value in refusal.details.values())]
    for secret in SECRETS:
        assert secret in request or not any(secret in each for each in shown), (method.path, secret, shown)


async def fuzz(server: AuthorisedServer, caller: str, calls: int, source: random.Random) -> Counter[str]:
    """Makes calls of a caller, and returns how many ended in which way."""
    methods, reasons = methods_of(server.url, server.issuer.root), Counter[str]()
    channel, token = await open_channel(server.url), server.tokens[caller]
    left = iter(range(calls))

    async def make_calls() -> None:
        for number in left:
            if number % 1000 == 999:
                await asyncio.to_thread(server.world.renew)
            # In the order of the methods, so that none is left out.
            method = methods[number % len(methods)]
            request = make_request(source, method.request, server.known())
            is_open = permission_of(method.path[1:]).is_open
            if is_open and len(request) > MOST_OPEN_BYTES:
                continue  # It would end the connection, with the calls beside it, before one is authenticated.
            outcome = await call(channel, method, [request], token)
            check_answer(method, request, outcome)
            check_outcome(method, outcome)
            if token is None and not is_open:
                if outcome.code is grpc.StatusCode.CANCELLED:
                    # A busy server has not answered before the stream was cancelled here.
                    assert not outcome.responses, method.path
                    continue
                assert outcome.refusal is not None, method.path
                # The client reports another error if it was still sending.
                is_refused = outcome.refusal.reason == "UNAUTHENTICATED" or method.streams_requests
                assert is_refused, (method.path, outcome)
            if method.path.endswith("DropTable") and outcome.refusal is None:
                await asyncio.to_thread(server.world.renew)
            reasons[outcome.refusal.reason if outcome.refusal else "OK"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(make_calls())
    await channel.close(None)
    return reasons


def run(server: AuthorisedServer, caller: str, calls: int) -> None:
    seed = int(os.environ.get("SCANKV_FUZZ_SEED", random.randrange(2**32)))
    print(f"seed {seed}")  # noqa: T201  # a failure shows it
    before = server.granted_rows()
    reasons = asyncio.run(fuzz(server, caller, calls, random.Random(seed)))
    print(reasons.most_common())  # noqa: T201
    server.vault.check()
    if "write" not in caller and "administer" not in caller:
        assert server.granted_rows() == before
    if server.tokens[caller] is not None:
        assert reasons["OK"] > calls / 50
        assert reasons["PERMISSION_DENIED"] > calls / 50
    errors = [line for line in server.process.log.splitlines() if " ERROR " in line or "Traceback" in line]
    assert not errors, (errors[:9], server.process.log_path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.represented_by("without a token")
def test_a_caller_sees_and_changes_nothing_without_a_grant(server: AuthorisedServer, caller: str) -> None:
    run(server, caller, FEW_CALLS)


@pytest.mark.soak
@pytest.mark.parametrize("caller", CALLERS)
def test_a_caller_sees_and_changes_nothing_without_a_grant_in_many_calls(server: AuthorisedServer, caller: str) -> None:
    run(server, caller, CALLS)


def test_the_transaction_that_callers_could_not_touch_is_committed(server: AuthorisedServer) -> None:
    server.vault.check()
    server.vault.commit()
