"""What one principal may take of the server: live streams, requests a second, bytes a second."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from scankv.model.errors import ServerBusy, TooManyScans, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from streaming_server.access.callers import CallerIdentity

BURST_SECONDS: Final = 1.0
"""For how many seconds of its rate a principal may be ahead. An idle principal may then use so much at once."""

STREAM_BURST_SECONDS: Final = 0.5
"""The same for streams. It is less, so that a stream at the limit leaves room for other calls of its principal."""

MIN_BYTES_PER_SECOND: Final = 1 << 20
"""The least limit of bytes a second: a chunk of a stream, of at most about 2 MiB, must not take long."""

_RETRY_SECONDS: Final = 0.25
_MAX_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimits:
    """Limits of one principal. 0: no limit. Immutable.

    Attributes:
        scans: Live scans, streams of changes and checks of tables.
        requests_per_second: Calls, refused ones included.
        bytes_per_second: Bytes of requests, of answers and of the messages of streams.
    """

    scans: int = 0
    requests_per_second: float = 0
    bytes_per_second: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError for a limit that is not allowed."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
                raise UsageError(f"the limit {field.name} must be a number of at least 0 (no limit), not {value!r}")
        if not isinstance(self.scans, int) or not isinstance(self.bytes_per_second, int):
            raise UsageError("the limits scans and bytes_per_second must be whole numbers")
        if 0 < self.bytes_per_second < MIN_BYTES_PER_SECOND:
            raise UsageError(
                f"the limit bytes_per_second must be 0 (no limit) or at least {MIN_BYTES_PER_SECOND:,}, not "
                f"{self.bytes_per_second:,}"
            )

    def overridden_by(self, limits: Mapping[str, float]) -> CallerLimits:
        """Returns these limits, some of which others replace."""
        values = {field.name: limits.get(field.name, getattr(self, field.name)) for field in fields(self)}
        return CallerLimits(**values)

    @property
    def is_any(self) -> bool:
        """Whether there is a limit."""
        return bool(self.scans or self.requests_per_second or self.bytes_per_second)


class _Usage:
    """What one principal takes.

    Attributes:
        scans: Its live streams.
        requests_until: Until when the requests so far have used up the rate.
        bytes_until: The same for bytes.
    """

    __slots__ = ("bytes_until", "requests_until", "scans")

    def __init__(self) -> None:
        self.scans = 0
        self.requests_until = 0.0
        self.bytes_until = 0.0


class CallerLimiter:
    """Counts what each principal takes, and refuses or slows down what exceeds its limits. Bound to the event loop.

    All tokens of a principal share its counts. Each call is held to the limits of its own token. A server without
    tokens has one principal, which is all of its clients.

    Args:
        defaults: The limits of callers whose tokens do not set their own.
        monotonic: Returns monotonic seconds.

    Attributes:
        refusals: How many calls were refused, by the limit: `scans`, `requests` or `bytes`.
        delayed_seconds: For how long streams were held back.
    """

    def __init__(self, defaults: CallerLimits, monotonic: Callable[[], float]) -> None:
        self._defaults = defaults
        self._monotonic = monotonic
        self._usage: dict[str, _Usage] = {}
        self._known: dict[tuple[tuple[str, float], ...], CallerLimits] = {}
        self.refusals: Counter[str] = Counter({"scans": 0, "requests": 0, "bytes": 0})
        self.delayed_seconds = 0.0

    def limits_of(self, caller: CallerIdentity) -> CallerLimits:
        """Returns the limits of a caller."""
        if not caller.limits:
            return self._defaults
        found = self._known.get(caller.limits)
        if found is None:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            found = self._known[caller.limits] = self._defaults.overridden_by(dict(caller.limits))
        return found

    def admit(self, caller: CallerIdentity) -> None:
        """Counts a call.

        Raises:
            ServerBusy: The caller makes too many calls, or too large ones.
        """
        limits = self.limits_of(caller)
        if not limits.requests_per_second and not limits.bytes_per_second:
            return
        usage, now = self._usage_of(caller), self._monotonic()
        if limits.bytes_per_second and usage.bytes_until - now > BURST_SECONDS:
            self.refusals["bytes"] += 1
            raise ServerBusy(
                f"the caller has used up its limit of {limits.bytes_per_second:,} bytes a second (bytes_per_second): "
                "try again, send and read less, or ask the operator of the server for a higher limit",
                retry_after=usage.bytes_until - now - BURST_SECONDS,
            )
        if limits.requests_per_second:
            began = max(usage.requests_until, now)
            # A rate below one a second must allow one call, too.
            ahead = max(BURST_SECONDS, 1 / limits.requests_per_second)
            until = began + 1 / limits.requests_per_second
            if until - now > ahead + 1e-9:
                self.refusals["requests"] += 1
                raise ServerBusy(
                    f"the caller has used up its limit of {limits.requests_per_second:g} requests a second "
                    "(requests_per_second): try again, make fewer calls with more rows each, or ask the operator of "
                    "the server for a higher limit",
                    retry_after=until - now - ahead,
                )
            usage.requests_until = until

    def byte_counter(self, caller: CallerIdentity) -> Callable[[int], None] | None:
        """Returns a function to be called with the bytes that a caller has sent or gets; None without a limit."""
        rate = self.limits_of(caller).bytes_per_second
        return (lambda size: self._count_bytes(caller, size, rate)) if rate else None

    def stream_pace(self, caller: CallerIdentity) -> Callable[[int], float] | None:
        """Returns a function to be called with the bytes of each message of a stream; None without a limit.

        It returns for how many seconds to hold the message back, so that the caller stays within its limit.
        """
        rate = self.limits_of(caller).bytes_per_second
        if not rate:
            return None

        def pace(size: int) -> float:
            self._count_bytes(caller, size, rate)
            seconds = max(0.0, self._usage_of(caller).bytes_until - self._monotonic() - STREAM_BURST_SECONDS)
            self.delayed_seconds += seconds
            return seconds

        return pace

    def _count_bytes(self, caller: CallerIdentity, size: int, rate: float) -> None:
        usage = self._usage_of(caller)
        usage.bytes_until = max(usage.bytes_until, self._monotonic()) + size / rate

    @contextmanager
    def stream(self, caller: CallerIdentity) -> Iterator[None]:
        """Counts a stream for the length of the block.

        Raises:
            TooManyScans: The caller has too many streams.
        """
        limit = self.limits_of(caller).scans
        usage = self._usage_of(caller)
        if limit and usage.scans >= limit:
            self.refusals["scans"] += 1
            raise TooManyScans(
                f"the caller has {usage.scans} live scans and streams, its limit (scans): try again, close scans that "
                "are not needed, or ask the operator of the server for a higher limit",
                retry_after=_RETRY_SECONDS,
            )
        usage.scans += 1
        try:
            yield
        finally:
            usage.scans -= 1

    def _usage_of(self, caller: CallerIdentity) -> _Usage:
        usage = self._usage.get(caller.principal)
        if usage is None:
            if len(self._usage) >= _MAX_REMEMBERED:
                self._forget_idle()
            usage = self._usage[caller.principal] = _Usage()
        return usage

    def _forget_idle(self) -> None:
        now = self._monotonic()
        self._usage = {
            principal: usage
            for principal, usage in self._usage.items()
            if usage.scans or max(usage.requests_until, usage.bytes_until) > now
        }
