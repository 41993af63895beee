"""No request about a tablet gets to its method without what its call has decided."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from google.protobuf import descriptor_pool, message_factory

import streaming_server
from scankv.model.errors import InvalidRequest
from streaming_server.engine.bucket.call_point import PASSED_ON, CallPoint
from streaming_server.services.forwarding import POINT, Workers
from streaming_server.services.tablets.decided_calls import DECIDED, UNDECIDED, PointCheck, tablet_in
from streaming_server.workers import alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from scankv.v1 import worker_pb2
    from streaming_server.engine.tables.tables import Tables

ROOT = Path(streaming_server.__file__).parents[1]
TABLET = "a.t#1"

OF_TABLES = {
    ("BootstrapService/BeginBootstrap", "definition.name"): "clients define tables, which get tablets later",
    ("TransactionService/BeginTransaction", "job.table"): "the table of a job, as a client names it",
    ("SnapshotService/PinSnapshots", "tables"): "tables, as a client names them; each is checked to be no tablet",
}
"""Fields that may have the name of a table, and why never that of a tablet."""

OF_OTHER_THINGS = {"AdminService/Activity", "TransactionService/CommitTransaction"}
"""Calls between processes that name no table."""

_NAME = re.compile(r"(.*_)?(tables?|tablets?|name)")


def input_of(method: str) -> Descriptor:
    return descriptor_pool.Default().FindMethodByName(f"scankv.v1.{method.replace('/', '.')}").input_type


def request_of(method: str) -> Message:
    """Returns a request whose every text is the name of a tablet."""
    descriptor = input_of(method)
    request = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(request, field.name, TABLET)
    if method == "TabletService/QueryTablet":
        cast("worker_pb2.QueryTabletRequest", request).count.table = TABLET
    return request


def methods() -> list[str]:
    """Returns all methods of the protocol, as the descriptors of its services say."""
    files = (
        descriptor_pool.Default().FindFileByName(f"scankv/v1/{path.stem}.proto")
        for path in (ROOT / "protos" / "scankv" / "v1").glob("*.proto")
    )
    services = [service for file in files for service in file.services_by_name.values()]
    return sorted(f"{service.name}/{method.name}" for service in services for method in service.methods)


@pytest.mark.parametrize("method", methods())
def test_a_request_about_a_tablet_without_a_decision_is_refused(method: str) -> None:
    request = request_of(method)
    # Neither opens a connection before it is needed.
    check = PointCheck(Workers(alone(), 65_536, 1.0), cast("Tables", None))
    if method in UNDECIDED or not tablet_in(request):
        assert method not in DECIDED
        assert not check.begin(method, request, ())
        return
    with pytest.raises(InvalidRequest, match=r"must say what its call has decided|is not for tablets"):
        check.begin(method, request, ())


@pytest.mark.parametrize("method", methods())
def test_the_check_looks_at_every_field_that_may_name_a_tablet(method: str) -> None:
    for path in name_fields(input_of(method)):
        if (method, ".".join(path)) in OF_TABLES:
            continue
        request = message_factory.GetMessageClass(input_of(method))()
        message = request
        for field in path[:-1]:
            message = getattr(message, field)
        setattr(message, path[-1], TABLET)
        assert tablet_in(request) == TABLET


def name_fields(message: Descriptor) -> Iterator[tuple[str, ...]]:
    """Yields the ways to all fields of a message, and of the messages in it, that may have the name of a table."""
    for field in message.fields:
        if field.type == field.TYPE_STRING and _NAME.fullmatch(field.name):
            yield (field.name,)
        elif field.message_type is not None and field.message_type is not message:
            yield from ((field.name, *path) for path in name_fields(field.message_type))


def test_methods_that_are_listed_exist() -> None:
    assert sorted({*DECIDED, *UNDECIDED} - {*methods()}) == []
    assert sorted({*DECIDED} & {*UNDECIDED}) == []


def test_all_calls_between_processes_about_tablets_are_listed() -> None:
    text = "".join(path.read_text() for path in (Path(streaming_server.__file__).parent).rglob("*.py"))
    named = set(re.findall(r'"scankv\.v1\.(\w+/\w+)"', text))
    # Their service is in a constant.
    named |= {f"TransactionService/{name}" for name in re.findall(r'f"\{_TRANSACTIONS\}/(\w+)"', text)}
    assert named >= {"TabletService/QueryTablet", "TransactionService/LookupStaged"}
    named -= OF_OTHER_THINGS
    assert sorted(named - {*DECIDED} - {*UNDECIDED}) == []


def test_a_decision_comes_back_as_it_was() -> None:
    for point in (CallPoint("abc", 7, 9), CallPoint("abc", 0, 9, is_alone=True), CallPoint("abc", None, 9)):
        assert CallPoint.from_bytes(point.to_bytes()) == point
    assert CallPoint.from_bytes(PASSED_ON) is None
    assert POINT.endswith("-bin")
