"""Every field and public attribute that carries a position is of a kind whose holder is told what a restore does to it.

The kinds are those of docs/concepts/positions.md, and tests/integration/server/test_histories.py uses them after every
way back.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aio_client
import scankv.v1
from tests.integration.server.test_histories import USES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor

_PAGE: Final = Path(__file__).parents[2] / "docs" / "concepts" / "positions.md"
_POSITION: Final = re.compile(r"offset|version|token|epoch|incarnation|fence|history|_since|rows_position")

# The kinds of the page, with their uses in the tests.
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "log offsets": ("start", "start without incarnation", "stop"),
    "resume token of changes": ("changes token",),
    "resume token of a scan": ("scan token",),
    "consumer": ("consumer",),
    "precondition": ("precondition",),
    "offsets of an undo": ("undo",),
    "version": ("version",),
    "writer": ("writer",),
    "mirror": ("mirror",),
    "snapshot": ("snapshot",),
    "publication": ("publication",),
    "start of a publication": ("start of a publication",),
    # tests/spark/test_restarts.py, tests/spark/test_restored_sink.py
    "Spark checkpoint": (),
    "Spark checkpoint of a sink": (),
    "transaction": ("transaction",),
}

# Patterns of fields of the protocol, each with their kind, or in parentheses why they are no position that is kept.
FIELDS: Final[dict[str, str]] = {
    r"Consumer\..*|CommitPosition\w+\..*|ResetConsumer\w+\..*|\w+\.consumer_fence": "consumer",
    r"\w+\.if_changed_since|\w+Response\.version|ScanHeader\.version|QueriedView\.version": "version",
    r"WatchTablet\w+\.(known_)?version": "version",
    r"Upsert\w+\.unchanged_since|Delete\w+\.unchanged_since": "precondition",
    r"WriterIdentity\..*|OpenWriter\w+\..*": "writer",
    r"Undo\w+\..*": "offsets of an undo",
    r"Scan(KvRequest|Header|Chunk|Heartbeat)\.resume_token|Scan(Claim|Part)\.token_head": "resume token of a scan",
    r"\w*Snapshot\w*\..*": "snapshot",
    r"(Begin|Commit|Abort|GiveUp|Locate|Prepare|Conclude)Transaction\w+\..*": "transaction",
    r"GetTransactionOutcome\w+\..*": "transaction",
    r"(GetForUpdate|LookupStaged|StageDeleteAll|DiscardFragments)\w+\.token|StagedAs\.token": "transaction",
    r"OpenTransaction\.token|Job(Step|Memory)\..*": "transaction",
    r"Changelog\.(stop_)?offsets|\w+\.(next_)?offsets?|ScanExplain\w+\..*": "log offsets",
    r"\w+\.log_offsets?|\w+\.offset_runs|\w+\.next_offset|\w+\.by_offset": "log offsets",
    r"(Upsert|Delete)Request\.table_incarnation": "(encoded rows, which the client encodes again)",
    r"CallPoint\..*": "(lasts as long as one call)",
    r"\w+\.table_incarnation|Table\.incarnation|ArchivedLog\.incarnation": "log offsets",
    r"StatsResponse\..*|ScanHeader\.server_incarnation|(Process|Table)Activity\.incarnation": "(describes the process)",
    r"Merging\.version_column": "(names a column)",
    r"(Bucket|Base)Statistics\..*|TableBases\..*": "(describes the moment)",
}
ATTRIBUTES: Final[dict[str, str]] = {
    r"Consumer\..*": "consumer",
    r"Writer\.epoch": "writer",
    r"UndoReport\..*": "offsets of an undo",
    r"Snapshot\..*": "snapshot",
    r"Transaction(Info|Part)?\.token|CommitResult\..*|JobStep\..*": "transaction",
    r"\w+\.if_changed_since|(ScanStream|TopN|Versioned)\.version": "version",
    r"\w+\.resume_token": "resume token of a scan",
    r"\w+\.\w*log_offsets|ScanStream\.next_offsets|\w+\.table_incarnation|Table\.incarnation": "log offsets",
    r"(StartFrom|StopAt)\.offsets|LogOffsets\..*|ClearedRange\..*|ScanExplanation\..*": "log offsets",
    r"(Bucket|Base)Stats\..*|TableBases\..*": "(describes the moment)",
    r"ServerStats\..*|ScanStream\.incarnation": "(describes the process)",
    r"Token(Env|File)\.version|ClientConfig\.token": "(of an access token)",
    r"Table\.version_column": "(names a column)",
}


def _fields(descriptors: dict[str, Descriptor]) -> Iterator[str]:
    for descriptor in descriptors.values():
        if descriptor.GetOptions().map_entry:
            continue
        yield from (f"{descriptor.name}.{field.name}" for field in descriptor.fields)
        yield from _fields(dict(descriptor.nested_types_by_name))


def _fields_of_the_protocol() -> set[str]:
    found: set[str] = set()
    for module in pkgutil.iter_modules(scankv.v1.__path__):
        if module.name.endswith("_pb2"):
            descriptor = importlib.import_module(f"scankv.v1.{module.name}").DESCRIPTOR
            found |= {*_fields(dict(descriptor.message_types_by_name))}
    return {name for name in found if _POSITION.search(name.partition(".")[2])}


def _public_attributes() -> set[str]:
    found = set()
    for name in aio_client.__all__:
        known = getattr(aio_client, name)
        if inspect.isclass(known):
            fields = dataclasses.fields(known) if dataclasses.is_dataclass(known) else ()
            found |= {f"{name}.{each}" for each in {*dir(known), *(field.name for field in fields)}}
    return {each for each in found if not (rest := each.partition(".")[2]).startswith("_") and _POSITION.search(rest)}


def _kind(name: str, kinds: dict[str, str]) -> str | None:
    return next((kind for pattern, kind in kinds.items() if re.fullmatch(pattern, name)), None)


def test_every_field_with_a_position_is_of_a_known_kind() -> None:
    for names, kinds in ((_fields_of_the_protocol(), FIELDS), (_public_attributes(), ATTRIBUTES)):
        assert len(names) > 30
        assert not {name for name in names if _kind(name, kinds) is None}
        assert {kind for kind in kinds.values() if not kind.startswith("(")} <= KINDS.keys()
        unused = {pattern for pattern in kinds if not any(re.fullmatch(pattern, name) for name in names)}
        assert not unused


def test_the_page_has_every_kind_and_the_tests_use_it() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in _PAGE.read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [*KINDS]
    assert {use for uses in KINDS.values() for use in uses} == USES.keys()
