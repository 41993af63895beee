"""What a call makes belongs to its principal: who may use it, over every call that names it, and what stays open."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from streaming_server.services.permissions import PERMISSIONS
from tests.support.secured import METHODS, SecuredServer, TokenCaller, TokenIssuer
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SERVICES = "scankv.v1"
SNAPSHOTS = f"{SERVICES}.SnapshotService"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])


@dataclass
class OwnedThings:
    """A table, what the principal `mine` holds of it, and callers.

    Attributes:
        owner: Of the principal `mine`, with the role write.
        twin: The same with another token.
        others: Callers of other principals, with the roles read and write.
        admin: An admin of the table, of another principal.
        ids: What `owner` holds, by kind.
    """

    table: str
    owner: TokenCaller
    twin: TokenCaller
    others: list[TokenCaller]
    admin: TokenCaller
    ids: dict[str, Any] = field(default_factory=dict)

    def hold(self, what: str) -> OwnedThings:
        """Has the owner make something."""
        self.ids[what] = MAKERS[what](self)
        return self


def pin(scene: OwnedThings) -> str:
    return str(scene.owner(f"{SNAPSHOTS}/PinSnapshot", table=scene.table, ttl_millis=60_000).snapshot.snapshot_id)


MAKERS: dict[str, Callable[[OwnedThings], Any]] = {"snapshot": pin}

# By call, what it does with something that belongs to a principal.
REQUESTS: dict[str, dict[str, Callable[[OwnedThings], dict[str, Any]]]] = {
    "SnapshotService/PinSnapshot": {"snapshot": lambda on: {"table": on.table, "lease_id": on.ids["snapshot"]}},
    "SnapshotService/RenewSnapshot": {"snapshot": lambda on: {"snapshot_id": on.ids["snapshot"]}},
    "SnapshotService/ReleaseSnapshot": {"snapshot": lambda on: {"snapshot_id": on.ids["snapshot"]}},
}
CALLS = [(method, what) for method, kinds in REQUESTS.items() for what in kinds]


class OwnersServer:
    """A server that asks for tokens."""

    def __init__(self, server: SecuredServer, tablets: int) -> None:
        self.server, self.tablets = server, tablets
        self.owner = server.caller("write:own.*", principal="mine")
        self.twin = server.caller("write:own.*", principal="mine")
        self.others = [server.caller("read:own.*", principal="b"), server.caller("write:own.*", principal="b")]
        self.admin = server.caller("admin:own.*", principal="c")

    def scene(self) -> OwnedThings:
        """Makes a table."""
        table = f"own.t{uuid.uuid4().hex}"
        self.server.root(
            f"{SERVICES}.TableService/CreateTable",
            name=table,
            arrow_schema=SCHEMA.serialize().to_pybytes(),
            primary_key=["k"],
            buckets=2,
            tablets=self.tablets,
        )
        return OwnedThings(table, self.owner, self.twin, self.others, self.admin)


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "tablets of two workers"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnersServer]:
    directory = tmp_path_factory.mktemp("owners")
    issuer = TokenIssuer(directory / "tokens")
    settings = ["--tokens", str(issuer.path), "--workers", str(request.param)]
    with ServerProcess(directory / "data", *settings) as server, SecuredServer(server.url, issuer) as secured:
        yield OwnersServer(secured, request.param)


def test_each_call_that_only_an_owner_may_make_is_tested() -> None:
    declared = {
        method.removeprefix(f"{SERVICES}."): sorted({each.what for each in PERMISSIONS[method].owned})
        for method in METHODS
        if PERMISSIONS[method].owned
    }
    assert {method: sorted(kinds) for method, kinds in REQUESTS.items()} == declared


def test_each_field_with_the_owner_of_something_exists_in_its_request() -> None:
    for method, permission in PERMISSIONS.items():
        for each in permission.owned:
            descriptor: Any = METHODS[method].input_type
            for name in each.field.split("."):
                assert name in descriptor.fields_by_name, (method, each.field)
                descriptor = descriptor.fields_by_name[name].message_type


@pytest.mark.parametrize(("method", "what"), CALLS)
def test_only_the_owner_or_an_admin_uses_what_is_held(stage: OwnersServer, method: str, what: str) -> None:
    scene, call = stage.scene().hold(what), f"{SERVICES}.{method}"
    request = REQUESTS[method][what]
    for other in scene.others:
        refused = other.refusal(call, **request(scene))
        assert refused is not None
        assert (refused.code, refused.reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
        # A caller with too small a role does not learn whose it is.
        if other is scene.others[-1]:
            assert refused.details["principal"] == "mine"
            assert 'belongs to the principal "mine"' in refused.message
    scene.twin(call, **request(scene))
    scene.hold(what).admin(call, **request(scene))


def test_a_reader_reads_a_snapshot_of_another_principal_and_pins_its_view(stage: OwnersServer) -> None:
    scene = stage.scene().hold("snapshot")
    reader, id_ = scene.others[0], scene.ids["snapshot"]
    at: dict[str, Any] = {"table": scene.table, "snapshot": {"snapshot_id": id_}}
    assert reader(f"{SERVICES}.LookupService/Count", **at).rows == 0
    assert reader(f"{SERVICES}.ScanService/ScanKv", **at).HasField("header")
    assert len(reader(f"{SNAPSHOTS}/SplitSnapshot", snapshot_id=id_, splits=2).ranges) == 2
    listed = reader(f"{SNAPSHOTS}/ListSnapshots", table=scene.table).snapshots
    assert [(each.snapshot_id, each.principal) for each in listed] == [(id_, "mine")]
    own = reader(f"{SNAPSHOTS}/PinSnapshot", table=scene.table, same_view_as=id_).snapshot
    assert (own.principal, own.view_id) == ("b", listed[0].view_id)
    reader(f"{SNAPSHOTS}/ReleaseSnapshot", snapshot_id=own.snapshot_id)


def test_all_readers_renew_a_shared_snapshot_and_only_its_owner_ends_it(stage: OwnersServer) -> None:
    scene = stage.scene()
    shared: dict[str, Any] = {"table": scene.table, "lease_id": uuid.uuid4().hex, "shared": True, "ttl_millis": 60_000}
    reader, id_ = scene.others[0], shared["lease_id"]
    scene.owner(f"{SNAPSHOTS}/PinSnapshot", **shared)
    assert reader(f"{SNAPSHOTS}/PinSnapshot", **shared).snapshot.principal == "mine"
    renewed = reader(f"{SNAPSHOTS}/RenewSnapshot", snapshot_id=id_, ttl_millis=1000).snapshot
    assert (renewed.ttl_millis, renewed.principal) == (60_000, "mine")
    assert reader.code(f"{SNAPSHOTS}/ReleaseSnapshot", snapshot_id=id_) == "PERMISSION_DENIED"
    scene.owner(f"{SNAPSHOTS}/ReleaseSnapshot", snapshot_id=id_)
