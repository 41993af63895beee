"""How far a consumer has come, as one value that only moves forward, over streams of other buckets too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """A position of a consumer. Immutable.

    Attributes:
        position: How far it has come, in every bucket that it ever read.
        query: The digest of the query whose rows, those of a start from the whole table, are being read. Of no meaning
            when none are, or none were yet.
    """

    position: LogPosition
    query: bytes

    @classmethod
    def from_token(cls, token: bytes, table: bytes) -> ConsumerProgress:
        """What a resume token says of a table, which is named by its digest. Raises InvalidResumeToken."""
        said = parse_log_token(token)
        if said.table != table:
            raise InvalidResumeToken("the resume token comes from another table, or the table was created anew")
        return cls(said.position, said.query)

    def token(self, table: bytes) -> bytes:
        """The token that `from_token` reads. Raises InvalidRequest when it would be too long."""
        return LogTokenWriter(Fingerprint(table, b"", self.query)).token(self.position, None)

    @property
    def is_reading_rows(self) -> bool:
        """Whether some rows of the whole table were read, but not all."""
        return self.position.scanning and self.position.scanned is not None

    def advance_to(self, to: ConsumerProgress) -> ConsumerProgress:
        """The later one of two positions: of offsets, the later one in every bucket.

        Raises:
            InvalidResumeToken: The other one is of a stream that read other buckets, while rows were being read.
        """
        before, after = self.position, to.position
        if not before.scanning:
            later = before if after.scanning else _later(before, after)
            return self if later == before else ConsumerProgress(later, to.query)
        if before.offsets.keys() != after.offsets.keys():
            raise InvalidResumeToken("the resume token comes from a stream of other buckets than the consumer's")
        return to if not after.scanning or _rows_read(after) > _rows_read(before) else self

    def with_offsets(self, offsets: dict[int, int]) -> ConsumerProgress:
        """The same with other offsets in some buckets, be they before those there are."""
        all_offsets = dict(sorted({**self.position.offsets, **offsets}.items()))
        net = {bucket: net for bucket, net in self.position.net.items() if bucket not in offsets}
        return ConsumerProgress(
            LogPosition(all_offsets, views=views_of(self.position, all_offsets), net=net), self.query
        )


def views_of(position: LogPosition, buckets: Iterable[int]) -> tuple[LaterView, ...]:
    """The views that a position behind the rows still needs, for some buckets; in others they show nothing."""
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
    """The later offset of every bucket; the views are those that were there before, whichever buckets came later."""
    offsets = dict(before.offsets)
    for bucket, offset in after.offsets.items():
        offsets[bucket] = max(offset, offsets.get(bucket, offset), key=lambda one: (count_of(one), one))
    offsets = dict(sorted(offsets.items()))
    net = {bucket: net for bucket in offsets if (net := _later_net(bucket, offsets[bucket], before, after)) is not None}
    return LogPosition(offsets, views=views_of(LogPosition(offsets, views=before.views), offsets), net=net)


def _later_net(bucket: int, offset: int, before: LogPosition, after: LogPosition) -> NetPosition | None:
    """How far the net changes that begin at an offset were given, by whichever position is there."""
    stretches = [
        position.net[bucket]
        for position in (before, after)
        if position.offsets.get(bucket) == offset and bucket in position.net
    ]
    return max(stretches, key=lambda net: (net.end, net.given), default=None)


def _rows_read(position: LogPosition) -> tuple[int, bytes, int]:
    """Orders positions among the rows of one start."""
    if position.scanned is None:
        return -1, b"", 0
    return position.scanned.bucket, position.scanned.key, len(position.views)
