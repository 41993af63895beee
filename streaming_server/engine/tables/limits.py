"""The limits of the parts of the engine, from the settings of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streaming_server.clock import ClockLimits
from streaming_server.engine.changelog.compacted_catch_up import CatchUpLimits
from streaming_server.engine.columnar.base_due import BaseLimits
from streaming_server.engine.transactions.transactions import TransactionLimits
from streaming_server.storage.bucket.writer_states import WriterLimits

if TYPE_CHECKING:
    from streaming_server.config import ServerConfig


def clock_limits(config: ServerConfig) -> ClockLimits:
    return ClockLimits(max_step_seconds=config.max_clock_step_seconds, trust_seconds=config.clock_trust_seconds)


def catch_up_limits(config: ServerConfig) -> CatchUpLimits:
    return CatchUpLimits(changes=config.catch_up_changes, memory_bytes=config.catch_up_memory_bytes)


def writer_limits(config: ServerConfig) -> WriterLimits:
    return WriterLimits(
        ttl_seconds=config.writer_ttl_seconds,
        max_writers=config.max_writers_per_bucket,
        share=config.max_caller_share,
    )


def transaction_limits(config: ServerConfig) -> TransactionLimits:
    return TransactionLimits(
        open=config.max_transactions,
        share=config.max_caller_share,
        bytes=config.max_transaction_bytes,
        ttl_seconds=config.transaction_ttl_seconds,
        remembered_seconds=config.committed_transaction_seconds,
        locked_keys=config.max_locked_keys,
    )


def base_limits(config: ServerConfig) -> BaseLimits:
    return BaseLimits(
        min_rows=config.base_min_rows,
        changed_share=config.base_changed_share,
        max_age_seconds=config.base_max_age_seconds,
        max_write_amplification=config.base_max_write_amplification,
        total_delta_bytes=config.base_total_delta_bytes,
        cpu_share=config.base_cpu_share,
    )
