"""Limits of one principal: what is counted, what is refused, and when to try again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from scankv.model.errors import ServerBusy, TooManyScans, UsageError
from streaming_server.access.callers import ANYBODY, CallerIdentity, TokenStore
from streaming_server.access.grants import Grants
from streaming_server.access.limits import CallerLimiter, CallerLimits
from streaming_server.access.token_file import create_token
from streaming_server.config import ServerConfig

if TYPE_CHECKING:
    from pathlib import Path

MEBIBYTE = 1 << 20


class SettableSeconds:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def caller(principal: str = "etl", **limits: float) -> CallerIdentity:
    return CallerIdentity(principal, Grants(["read:*"]), "id", None, tuple(limits.items()))


def admitted(limiter: CallerLimiter, by: CallerIdentity, most: int = 1000) -> int:
    """Returns how many calls are admitted now."""
    for number in range(most):
        try:
            limiter.admit(by)
        except ServerBusy:
            return number
    return most


def test_nothing_is_limited_by_default() -> None:
    limiter = CallerLimiter(CallerLimits(), SettableSeconds())
    assert admitted(limiter, ANYBODY) == admitted(limiter, caller()) == 1000
    assert limiter.byte_counter(ANYBODY) is None
    assert limiter.stream_pace(ANYBODY) is None
    with limiter.stream(ANYBODY), limiter.stream(ANYBODY):
        pass


@pytest.mark.parametrize("rate", [0.5, 1, 10, 100])
def test_requests_are_admitted_at_the_rate_with_a_burst_of_one_second(rate: float) -> None:
    clock = SettableSeconds()
    limiter = CallerLimiter(CallerLimits(requests_per_second=rate), clock)
    assert admitted(limiter, caller()) == max(1, rate)
    with pytest.raises(ServerBusy, match=r"limit of .* requests a second \(requests_per_second\)") as caught:
        limiter.admit(caller())
    assert caught.value.retry_after == pytest.approx(1 / rate)
    clock.now += 1 / rate
    assert admitted(limiter, caller()) == 1
    clock.now += 100
    assert admitted(limiter, caller()) == max(1, rate)
    assert limiter.refusals == {"scans": 0, "requests": 4, "bytes": 0}


def test_the_tokens_of_a_principal_share_its_counts_and_others_have_their_own() -> None:
    limiter = CallerLimiter(CallerLimits(), SettableSeconds())
    assert admitted(limiter, caller(requests_per_second=10)) == 10
    assert admitted(limiter, caller(requests_per_second=10, scans=1)) == 0
    assert admitted(limiter, caller("other", requests_per_second=10)) == 10
    assert admitted(limiter, caller()) == 1000


def test_a_token_replaces_single_limits_of_the_server() -> None:
    limiter = CallerLimiter(CallerLimits(scans=1, requests_per_second=10), SettableSeconds())
    assert limiter.limits_of(caller(requests_per_second=0)) == CallerLimits(scans=1)
    assert limiter.limits_of(ANYBODY) == CallerLimits(scans=1, requests_per_second=10)


def test_bytes_are_owed_and_later_calls_wait_for_them() -> None:
    clock = SettableSeconds()
    limiter, by = CallerLimiter(CallerLimits(bytes_per_second=MEBIBYTE), clock), caller()
    count = limiter.byte_counter(by)
    assert count is not None
    limiter.admit(by)
    count(5 * MEBIBYTE)
    with pytest.raises(ServerBusy, match="limit of 1,048,576 bytes a second") as caught:
        limiter.admit(by)
    assert caught.value.retry_after == pytest.approx(4)
    clock.now += 4
    limiter.admit(by)
    assert limiter.refusals["bytes"] == 1


def test_a_stream_at_the_limit_is_held_back_and_leaves_room_for_other_calls() -> None:
    clock = SettableSeconds()
    limiter, by = CallerLimiter(CallerLimits(bytes_per_second=10 * MEBIBYTE), clock), caller()
    pace = limiter.stream_pace(by)
    assert pace is not None
    sent, began = 0, clock.now
    while clock.now < began + 10:
        clock.now += pace(MEBIBYTE)
        sent += MEBIBYTE
        limiter.admit(by)
    assert sent / MEBIBYTE == pytest.approx(105, abs=2)
    assert limiter.delayed_seconds == pytest.approx(10, abs=0.2)


def test_live_streams_are_counted_until_they_end() -> None:
    limiter, by = CallerLimiter(CallerLimits(scans=2), SettableSeconds()), caller()
    with limiter.stream(by):
        with limiter.stream(by):
            with pytest.raises(TooManyScans, match="has 2 live scans and streams") as caught, limiter.stream(by):
                pass
            assert caught.value.retry_after
            with limiter.stream(caller("other")):
                pass
        with limiter.stream(by):
            pass
    assert limiter.refusals["scans"] == 1


def test_idle_principals_are_forgotten() -> None:
    clock = SettableSeconds()
    limiter = CallerLimiter(CallerLimits(requests_per_second=1), clock)
    for number in range(25_000):
        limiter.admit(caller(str(number)))
        clock.now += 1
    assert len(limiter._usage) <= 10_000


def test_a_token_file_has_limits_and_lines_without_them_are_as_before(tmp_path: Path) -> None:
    path, now = tmp_path / "tokens", datetime.now(UTC)
    limited = create_token(path, "etl", ["read:*"], now=now, limits={"scans": 4, "requests_per_second": 2.5})[1]
    plain = create_token(path, "plain", ["read:*"], now=now)[1]
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["limits"] == {"scans": 4, "requests_per_second": 2.5}
    assert "limits" not in second
    tokens = TokenStore(path, lambda: now.timestamp())
    found = tokens.verify(limited)
    assert isinstance(found, CallerIdentity)
    assert dict(found.limits) == first["limits"]
    assert isinstance(other := tokens.verify(plain), CallerIdentity)
    assert other.limits == ()


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"scan": 1}, "unknown limit 'scan': write scans, requests_per_second, bytes_per_second"),
        ({"scans": -1}, "the limit scans must be a number of at least 0"),
        ({"scans": 1.5}, "must be whole numbers"),
        ({"scans": True}, "must be a number"),
        ({"requests_per_second": float("nan")}, "must be a number"),
        ({"bytes_per_second": 1000}, "at least 1,048,576, not 1,000"),
    ],
)
def test_limits_that_are_not_allowed_are_refused(tmp_path: Path, limits: dict[str, float], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        create_token(tmp_path / "tokens", "etl", ["read:*"], now=datetime.now(UTC), limits=limits)


def test_the_settings_have_the_limits_for_everybody(tmp_path: Path) -> None:
    config = ServerConfig(data=tmp_path, max_caller_scans=3, max_caller_bytes_per_second=MEBIBYTE)
    assert config.caller_limits == CallerLimits(scans=3, bytes_per_second=MEBIBYTE)
    with pytest.raises(UsageError, match="max_caller_bytes_per_second must be 0"):
        ServerConfig(data=tmp_path, max_caller_bytes_per_second=5)
