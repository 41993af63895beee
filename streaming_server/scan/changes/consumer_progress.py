"""The progress of a consumer: one value that only moves forward, over streams of different buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from scankv.model.errors import InvalidResumeToken
from streaming_server.scan.changes.log_token import (
    LaterView,
    LogPosition,
    LogTokenWriter,
    NetPosition,
    parse_log_token,
)
from streaming_server.scan.resume_token import Fingerprint
from streaming_server.storage.changelog.offsets import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """The position of a consumer. Immutable.

    Attributes:
        position: How far the consumer has come, in every bucket that it ever read.
        query: The digest of the query, while a full start reads its rows. Otherwise meaningless.
    """

    position: LogPosition
    query: bytes

    @classmethod
    def from_token(cls, token: bytes, table: bytes) -> ConsumerProgress:
        """Parses a resume token of the table with the digest `table`. Raises InvalidResumeToken."""
        progress, is_current = cls.of_any(token, table)
        if not is_current:
            raise InvalidResumeToken(
                "the resume token comes from another table, or from before the table was restored or created again: "
                "start again"
            )
        return progress

    @classmethod
    def of_any(cls, token: bytes, table: bytes) -> tuple[Self, bool]:
        """Parses a resume token of any table, and says whether the table has this digest. Raises InvalidResumeToken."""
        said = parse_log_token(token)
        return cls(said.position, said.query), said.table == table

    def token(self, table: bytes) -> bytes:
        """Returns the token for `from_token`. Raises InvalidRequest if it would be too long."""
        return LogTokenWriter(Fingerprint(table, b"", self.query)).token(self.position, None)

    @property
    def is_reading_rows(self) -> bool:
        """Whether some of the rows of a full start were read, but not all of them."""
        return self.position.scanning and self.position.scanned is not None

    def advance_to(self, to: ConsumerProgress) -> ConsumerProgress:
        """Returns the later of two positions. The offsets of each bucket are compared separately.

        Raises:
            InvalidResumeToken: The other position comes from a stream of other buckets, while rows are being read.
        """
        before, after = self.position, to.position
        if not before.scanning:
            later = before if after.scanning else _later(before, after)
            return self if later == before else ConsumerProgress(later, to.query)
        if before.offsets.keys() != after.offsets.keys():
            raise InvalidResumeToken(
                "the resume token comes from a stream of other buckets: commit the tokens of the consumer's stream"
            )
        return to if not after.scanning or _rows_read(after) > _rows_read(before) else self

    def with_offsets(self, offsets: dict[int, int]) -> ConsumerProgress:
        """Returns the same progress with other offsets in some buckets, even earlier ones."""
        all_offsets = dict(sorted({**self.position.offsets, **offsets}.items()))
        net = {bucket: net for bucket, net in self.position.net.items() if bucket not in offsets}
        return ConsumerProgress(
            LogPosition(all_offsets, views=views_of(self.position, all_offsets), net=net), self.query
        )


def views_of(position: LogPosition, buckets: Iterable[int]) -> tuple[LaterView, ...]:
    """Returns the views that a position with all rows read still needs, restricted to some buckets."""
    passed = all(
        count_of(position.offsets[bucket]) >= count_of(end)
        for view in position.views
        for bucket, end in view.offsets.items()
    )
    if passed:
        return ()
    numbers = sorted(buckets)
    return tuple(
        LaterView(view.after, {bucket: view.offsets.get(bucket, 0) for bucket in numbers}) for view in position.views
    )


def _later(before: LogPosition, after: LogPosition) -> LogPosition:
    """Returns the later offset of each bucket. Keeps the views of `before`: new buckets bring no other views."""
    offsets = dict(before.offsets)
    for bucket, offset in after.offsets.items():
        offsets[bucket] = max(offset, offsets.get(bucket, offset), key=lambda one: (count_of(one), one))
    offsets = dict(sorted(offsets.items()))
    net = {bucket: net for bucket in offsets if (net := _later_net(bucket, offsets[bucket], before, after)) is not None}
    return LogPosition(offsets, views=views_of(LogPosition(offsets, views=before.views), offsets), net=net)


def _later_net(bucket: int, offset: int, before: LogPosition, after: LogPosition) -> NetPosition | None:
    """Returns the later position in the net changes that begin at an offset; None if neither position has one."""
    positions = [
        position.net[bucket]
        for position in (before, after)
        if position.offsets.get(bucket) == offset and bucket in position.net
    ]
    return max(positions, key=lambda net: (net.end, net.given), default=None)


def _rows_read(position: LogPosition) -> tuple[int, bytes, int]:
    """Returns the key by which positions within the rows of one full start are ordered."""
    if position.scanned is None:
        return -1, b"", 0
    return position.scanned.bucket, position.scanned.key, len(position.views)
