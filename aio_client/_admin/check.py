"""Checks a table: whether its stored rows, row counts and indexes agree."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aio_client._transport.call_traces import trace_call
from scankv.v1 import admin_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from aio_client._transport.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCheck:
    """The result of checking one index in one bucket.

    Attributes:
        columns: The columns of the index, in order.
        entries: The number of entries.
        ready: Whether the index is used. An index that is still being built is not compared with the rows.
        problem: What is wrong with the index. None: nothing.
    """

    columns: tuple[str, ...]
    entries: int
    ready: bool
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCheck:
    """The result of checking one bucket, as of one instant.

    Attributes:
        bucket: The bucket's number.
        rows: The number of rows.
        indexes: The result for each index, in the order of the table's indexes.
        problem: What is wrong with the rows, or why they cannot be read. None: nothing.
    """

    bucket: int
    rows: int
    indexes: tuple[IndexCheck, ...]
    problem: str | None

    @property
    def is_consistent(self) -> bool:
        """Whether nothing is wrong with the rows and the indexes."""
        return self.problem is None and all(index.problem is None for index in self.indexes)

    @classmethod
    def of(cls, message: admin_pb2.BucketCheck) -> Self:
        """Decodes the result of one bucket."""
        return cls(
            bucket=message.bucket,
            rows=message.rows,
            indexes=tuple(
                IndexCheck(
                    columns=tuple(index.columns),
                    entries=index.entries,
                    ready=index.ready,
                    problem=index.problem or None,
                )
                for index in message.indexes
            ),
            problem=message.problem or None,
        )


async def check_table(
    transport: Transport, name: str, on_bucket: Callable[[BucketCheck], None] | None
) -> list[BucketCheck]:
    """Checks every bucket, and reports each one as soon as it is done. See `Client.check_table`."""
    request = admin_pb2.CheckTableRequest(table=name)
    tracer = transport.tracer
    with nullcontext() if tracer is None else trace_call(tracer, transport.address, request, streams=True):
        await transport.prepare_token()
        call = transport.open_check(request)
        checks = []
        while (message := await call.read(None)) is not None:
            check = BucketCheck.of(message)
            checks.append(check)
            if on_bucket is not None:
                on_bucket(check)
    return checks
