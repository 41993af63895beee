"""Each method that refines a scan returns a copy, whose spec contains the refinement."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aio_client import Resume, ScanSource, ScanSpec, UsageError, sync
from aio_client._scan.scan import Scan
from aio_client._transport.config import ClientConfig

SPEC = ScanSpec("game.scores")


@pytest.fixture(params=[Scan, sync.Scan])
def scan(request: pytest.FixtureRequest) -> Scan | sync.Scan:
    made: Scan | sync.Scan = request.param(None, SPEC)  # no call is made
    return made


def test_each_refinement_is_a_copy(scan: Scan) -> None:
    assert scan.as_of("pin").spec == ScanSpec("game.scores", snapshot_id="pin")
    assert scan.as_of(SimpleNamespace(id="pin")).spec == ScanSpec("game.scores", snapshot_id="pin")
    assert scan.reverse().spec == ScanSpec("game.scores", reverse=True)
    assert scan.reverse().reverse().spec == SPEC
    assert scan.ordered().spec == scan.ordered().ordered().spec == ScanSpec("game.scores", ordered=True)
    assert scan.unordered().spec == ScanSpec("game.scores", unordered=True)
    assert scan.consistency("owner").spec == ScanSpec("game.scores", consistency="owner")
    assert scan.consistency("owner").consistency("table").spec == SPEC
    assert scan.resume(Resume.LATEST).spec == ScanSpec("game.scores", resume=Resume.LATEST)
    assert scan.resume_from(b"token").spec == ScanSpec("game.scores", resume_token=b"token")
    assert scan.spec == SPEC
    assert type(scan.as_of("pin")) is type(scan)


def test_a_scan_has_one_source_and_a_later_one_replaces_it(scan: Scan) -> None:
    pinned = scan.with_source(ScanSource.SNAPSHOT, "pin")
    assert pinned.spec == scan.as_of("pin").spec
    assert scan.with_source(ScanSource.SNAPSHOT, SimpleNamespace(id="pin")).spec == pinned.spec
    changes = scan.with_source(ScanSource.LOG)
    assert [each.spec.source for each in (scan, pinned, changes)] == ["kv", "snapshot", "log"]
    assert changes.with_source(ScanSource.SNAPSHOT, "pin").spec == pinned.spec
    assert pinned.with_source(ScanSource.SNAPSHOT, "other").spec == scan.as_of("other").spec
    assert pinned.with_source(ScanSource.KV).spec == changes.with_source(ScanSource.KV).spec == SPEC
    with pytest.raises(UsageError, match="a snapshot has no changes; start with its log offsets"):
        pinned.with_source(ScanSource.LOG)


def test_only_the_source_snapshot_has_a_snapshot(scan: Scan) -> None:
    with pytest.raises(UsageError, match=r"ScanSource\.SNAPSHOT needs the snapshot to read, or its id"):
        scan.with_source(ScanSource.SNAPSHOT)
    with pytest.raises(UsageError, match="snapshot must be a snapshot or its id, not ''"):
        scan.with_source(ScanSource.SNAPSHOT, "")
    for source in (ScanSource.KV, ScanSource.LOG):
        with pytest.raises(UsageError, match=rf"only for ScanSource\.SNAPSHOT, not for ScanSource\.{source.name}"):
            scan.with_source(source, "pin")


def test_what_cannot_be_is_refused_at_once(scan: Scan) -> None:
    with pytest.raises(UsageError, match="as_of must be a snapshot or its id, not ''"):
        scan.as_of("")
    with pytest.raises(UsageError, match="as_of must be a snapshot or its id, not None"):
        scan.as_of(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"resume must be Resume\.NEVER"):
        scan.resume("latest")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a resume token must be bytes"):
        scan.resume_from(None)  # type: ignore[arg-type]


def test_the_blocking_client_takes_the_same_settings() -> None:
    with sync.connect("h:1", next_chunk_timeout=3, read_ahead_chunks=7) as client:
        assert client.config == ClientConfig(url="h:1", next_chunk_timeout=3, read_ahead_chunks=7)
