"""The settings of the server, and where their values come from: flags, environment, a file, defaults."""

from __future__ import annotations

import inspect
import re
import textwrap
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from scankv.model.errors import UsageError, did_you_mean
from scankv.model.limits import (
    DEFAULT_CHUNK_BYTES,
    MAX_LEASE_SECONDS,
    MAX_REQUEST_BYTES,
    MIN_CALLS_PER_CONNECTION,
    MIN_CHUNK_BYTES,
    MIN_LEASE_SECONDS,
)
from scankv.model.toml import toml_value
from streaming_server.access.audit_outputs import parse_audit_output
from streaming_server.access.jwt_settings import ALGORITHMS, JwtSettings, url_problem
from streaming_server.access.limits import MIN_BYTES_PER_SECOND, CallerLimits
from streaming_server.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

_MEBIBYTE = 1 << 20

LARGEST_CHUNK_BYTES = 2 * _MEBIBYTE
"""The most stored bytes of a chunk, whatever a request asks for: building 16 MiB blocked the event loop for 150 ms."""


LOG_LEVELS = ("debug", "info", "warning", "error")
"""Severities of log messages, the least severe first."""

LOG_FORMATS = ("text", "json")
"""The formats of the log."""


RANGES: Final[dict[str, tuple[float, float]]] = {
    "port": (0, 65535),
    "workers": (1, 64),
    "worker_timeout_seconds": (2, 86_400),
    "metrics_port": (0, 65535),
    "http_port": (0, 65535),
    "http_session_seconds": (1, 365 * 86_400),
    "http_session_idle_seconds": (1, 365 * 86_400),
    "http_sql_memory_bytes": (_MEBIBYTE, 2**40),
    "http_sql_seconds": (0.01, 86_400),
    "metrics_max_tables": (0, 100_000),
    "slow_request_seconds": (0, 86_400),
    "jwt_leeway_seconds": (0, 300),
    "jwt_max_key_age_seconds": (600, 30 * 86_400),
    "max_caller_scans": (0, 100_000),
    "max_caller_share": (0.001, 1),
    "max_caller_requests_per_second": (0, 10**9),
    "max_caller_bytes_per_second": (0, 2**50),
    "chunk_bytes": (MIN_CHUNK_BYTES, LARGEST_CHUNK_BYTES),
    "max_live_scans": (1, 100_000),
    "max_live_scans_per_bucket": (1, 100_000),
    "max_followers": (1, 100_000),
    "max_waiting_calls": (0, 1_000_000),
    "max_request_bytes_in_flight": (2 * MAX_REQUEST_BYTES, 2**40),
    "max_unread_answer_bytes": (4 * MAX_REQUEST_BYTES, 2**40),
    "request_receive_seconds": (0.1, 3600),
    "min_ping_interval_seconds": (0.01, 3600),
    "max_connections": (1, 1_000_000),
    "max_unauthenticated_connections": (1, 1_000_000),
    "max_connection_age_seconds": (1, 10 * 365 * 86_400),
    "max_calls_per_connection": (MIN_CALLS_PER_CONNECTION, 1_000_000),
    "max_waiting_scans": (0, 100_000),
    "admission_wait_seconds": (0, 60),
    "stall_timeout_seconds": (0.1, 86_400),
    "max_scan_seconds": (0.1, 604_800),
    "heartbeat_seconds": (0, 60),
    "follow_heartbeat_seconds": (0.01, 60),
    "base_maintenance_seconds": (0.01, 3600),
    "base_min_rows": (0, 2**60),
    "base_changed_share": (0, 10),
    "base_max_age_seconds": (0.01, 10 * 365 * 86_400),
    "base_max_write_amplification": (1, 10**12),
    "base_total_delta_bytes": (1024, 2**50),
    "base_cpu_share": (0.01, 1),
    "sweep_seconds": (0.01, 3600),
    "sweep_cpu_share": (0.001, 1),
    "log_maintenance_seconds": (0.01, 3600),
    "partition_expiry_seconds": (0.01, 86_400),
    "max_retention_hold_bytes": (0, 2**60),
    "catch_up_changes": (1, 2**48),
    "catch_up_memory_bytes": (_MEBIBYTE, 2**40),
    "drain_seconds": (0, 86_400),
    "snapshot_ttl_seconds": (MIN_LEASE_SECONDS, MAX_LEASE_SECONDS),
    "consumer_ttl_seconds": (1, 10 * 365 * 86_400),
    "max_consumers": (1, 1_000_000),
    "writer_ttl_seconds": (1, 10 * 365 * 86_400),
    "max_writers_per_bucket": (1, 10_000_000),
    "max_transactions": (1, 1_000_000),
    "max_locked_keys": (0, 100_000_000),
    "max_transaction_bytes": (_MEBIBYTE, 1 << 50),
    "transaction_ttl_seconds": (MIN_LEASE_SECONDS, MAX_LEASE_SECONDS),
    "committed_transaction_seconds": (60, 10 * 365 * 86_400),
    "max_snapshot_leases": (1, 1_000_000),
    "max_snapshot_bytes": (0, 1 << 60),
    "block_cache_bytes": (_MEBIBYTE, 1 << 40),
    "write_buffer_bytes": (_MEBIBYTE, 1 << 40),
    "result_cache_bytes": (0, 1 << 40),
    "min_free_bytes": (0, 1 << 60),
    "max_open_buckets": (1, 100_000),
    "bucket_idle_seconds": (0.01, 365 * 86_400),
    "storage_threads": (1, 64),
    "max_clock_step_seconds": (1, 86_400),
    "clock_trust_seconds": (0, 10 * 365 * 86_400),
    "backup_every_seconds": (0, 365 * 86_400),
    "backup_keep": (0, 100_000),
    "archive_every_seconds": (0, 3600),
}
"""The least and the greatest value of each setting that is a number."""


SHARES_OF_MEMORY: Final[dict[str, int]] = {
    "block_cache_bytes": 16,
    "write_buffer_bytes": 8,
    "result_cache_bytes": 32,
    "base_total_delta_bytes": 8,
    "max_request_bytes_in_flight": 16,
    "max_unread_answer_bytes": 8,
}
"""Which part of the memory limit the default of a setting takes at most, as its divisor. What is given is not changed.
"""
_ALWAYS_A_SHARE: Final = frozenset({"block_cache_bytes"})
"""The settings of these whose default is this part, however much memory there is.

A row that is updated is read by its key first. In a table that is larger than the block cache, each such read takes a
block out of a file, which costs several times as much as the update itself.
"""

PROCESS_BYTES: Final = 200 * _MEBIBYTE
"""The memory of a server without load."""
_REQUEST_COPIES: Final = 3  # while a write is carried out
_CHUNKS_OF_SCAN: Final = 2


NOT_FROM_ENVIRONMENT: Final = frozenset({"tls_certificate", "tls_key"})
"""Settings that no environment variable sets: `SCANKV_TLS_CERTIFICATE` and `SCANKV_TLS_KEY` are those of a client."""

_RENAMED: Final = {"aggregate_functions": "aggregators"}
"""Settings of earlier versions, and what they are called now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of one server. Immutable and picklable.

    Attributes:
        data: The data directory. It is created if it does not exist.
        host: The address to listen on. Addresses other than loopback need TLS and tokens, or `insecure`.
        port: The port to listen on. 0 picks a free one.
        workers: The number of processes that share the work, ideally one for each core. Each owns some of the tables.
            The limits on memory are divided among them; all other limits are those of each process. 1: the server is
            one process. See docs/operations/workers.md.
        worker_timeout_seconds: A worker whose event loop does not run for this long, because the process is frozen or
            hangs, is killed and started again.
        metrics_port: The port that serves metrics and health over HTTP. 0: none does.
        metrics_host: The address of this port. Addresses other than loopback are served over HTTPS with the certificate
            of the server, or need `insecure`. With `tls_client_ca`, reading metrics there needs a certificate, too.
            Otherwise, any program that reaches the port can read the metrics, which name tables.
        http_port: The port of the HTTP gateway, which runs in a process of its own; docs/guides/http.md. 0: there is
            none.
        http_host: The address of this port. Addresses other than loopback are served over HTTPS with the certificate
            of the server, and need tokens; without them only with `insecure`.
        http_origins: The origins of other web sites whose pages may read what the gateway answers, such as
            `https://example.com`. A list in TOML; comma-separated elsewhere.
        http_access_log: Whether to log each request over HTTP at the level `info`: its client and user, its path
            without the query, and what was answered.
        http_session_seconds: How long a login to the console lasts at most. It also ends with its token.
        http_session_idle_seconds: How long a login to the console lasts without use. A page that refreshes itself
            counts as use.
        http_sql_memory_bytes: How much memory a query in SQL over HTTP may take. Up to four run at once.
        http_sql_seconds: How long such a query may take, with the time in which its reader takes the rows.
        metrics_max_tables: The most tables with metrics of their own. The others are combined under the name `other`.
        log_level: The least severe level of messages to log: `debug`, `info`, `warning` or `error`.
        log_format: The format of log messages: `text`, or `json` with one JSON object for each line.
        slow_request_seconds: A call that keeps the server busy for longer is logged, a scan with its plan. Waiting for
            the client, and for changes, does not count. 0: no call is logged. Most calls take milliseconds, and scans
            of large tables take seconds.
        insecure: Whether the server may listen beyond loopback without TLS or without tokens.
        tokens: The file with the tokens that clients need, which `scankv tokens create` writes. The server notices
            changes within two seconds. Empty: no tokens are needed, and every client may do everything.
        jwt_issuer: The issuer of JSON web tokens (JWT) that the server accepts, next to those of the token file. It is
            exactly the claim `iss`. Unless `jwt_keys` is set, it is a url, and the server fetches the keys of the
            issuer from there, as OpenID Connect Discovery says. Needs `jwt_audience` and `jwt_grants`. Empty: none are
            accepted.
        jwt_audience: What the claim `aud` of a token must be or contain.
        jwt_keys: A file with the public keys of the issuer: a JSON web key set, or PEM. The server notices changes
            within two seconds. Empty: the keys are fetched from the issuer.
        jwt_ca: The file with the certificates of authorities to trust when keys are fetched, in PEM. Empty: those that
            the machine trusts.
        jwt_grants: The TOML file with grants: in the table `grants`, a list for each group. The server notices changes
            within two seconds.
        jwt_grants_claim: The claim with the groups of the caller: a list, or a text with spaces between them. A dot
            leads into an object, as in `realm_access.roles`.
        jwt_principal_claim: The claim with the name of the caller.
        jwt_shares_principals: Whether a name in a JWT and the same name in the token file are one principal. Otherwise,
            the principal of a JWT is its name after `jwt:`, so that the issuer cannot make tokens for principals of the
            token file.
        jwt_algorithms: The algorithms with which tokens may be signed, of RS256, RS384, RS512, PS256, PS384, PS512,
            ES256, ES384, ES512 and EdDSA. A list in TOML; comma-separated elsewhere.
        jwt_leeway_seconds: How far the clocks of the issuer and of the server may differ. Tokens are accepted for this
            much longer.
        jwt_max_key_age_seconds: How long the server uses the keys that it fetched last while it cannot fetch them
            again.
        tls_certificate: The file with the certificate of the server and its chain, in PEM. Encrypts all connections.
            The server notices a new certificate with the next connection. Empty: no encryption.
        tls_key: The file with the private key of the certificate, in PEM.
        tls_client_ca: The file with the certificates of authorities, in PEM, one of which must have signed the
            certificate of every client (mutual TLS). The token file may give grants to certificates; clients with
            other ones need a token, too. Empty: clients need no certificate.
        audit_log: The file to which the server appends a line of JSON for each call that changes something, and for
            each call that it refuses for lack of rights. Empty: it keeps no audit log in a file.
        audit_output: Where these lines go besides the file, or without one: `stdout`, `syslog` for `/dev/log`,
            `syslog:/PATH` for another local socket, or `syslog:HOST:PORT` for UDP. Empty: nowhere else.
        audit_reads: Whether calls that only read have lines in the audit log, too.
        max_caller_share: The share of the snapshot leases, consumers, open transactions, column locks of a table, and
            writers of a bucket that one principal may have. Admins of a table may have more, and only they get the last
            twentieth. Of the live scans, a principal keeps more only until others need the places of stalled ones.
            Without tokens, clients are not told apart, and there is no share.
        max_caller_scans: The most live scans and streams of one principal, unless its token sets another limit. Without
            tokens, all clients together are one principal. 0: no limit.
        max_caller_requests_per_second: The most calls of one principal in a second, unless its token sets another
            limit. 0: no limit.
        max_caller_bytes_per_second: The most bytes in a second that one principal sends and receives, unless its token
            sets another limit. 0: no limit. Otherwise at least 1 MiB.
        chunk_bytes: The most stored bytes of a chunk, for requests that do not set a limit.
        max_live_scans: The most scans that hold iterators at once.
        max_live_scans_per_bucket: The most scans that hold an iterator on one bucket at once.
        max_waiting_scans: The most scans that wait for admission at once. Further scans are refused with
            `TooManyScans`.
        admission_wait_seconds: How long a scan waits for admission before it is refused with `TooManyScans`.
        stall_timeout_seconds: A scan whose reader takes nothing for this long ends with `ScanStalled`.
        max_scan_seconds: A scan that takes longer ends with `ScanTooLong`.
        max_followers: The most streams of changes that are open at once.
        max_waiting_calls: The most calls that wait at once for a change of their result, as watches do. Further calls
            are answered without waiting.
        max_request_bytes_in_flight: The most bytes that requests over 64 KiB take in memory at once. Further requests
            are refused with `ServerBusy`, and their clients retry them. One connection gets half of them, and one
            principal three quarters, or less if that leaves no 32 MiB to others. The server needs several times the
            bytes of a write while it carries it out.
        max_unread_answer_bytes: The most bytes of answers that are in memory until their clients read them. One
            connection gets half of them. Further calls are refused with `ServerBusy`, and their clients retry them. If
            there is no room, the server closes connections whose clients have not read an answer for
            `stall_timeout_seconds`. Scans have limits of their own until they end.
        request_receive_seconds: How long a request may take to arrive after its call has begun, and how long a new
            connection may take until it has had a call with a valid token. On a server without tokens, any call counts.
        max_connections: The most connections at once. The server closes further ones as soon as they are made.
            Connections take at most a quarter of the limit of open files, whatever this setting says.
        max_unauthenticated_connections: The most connections of one address at once, in each worker process, that have
            had no call with a valid token. The server closes the oldest of them. An IPv6 network (/64) counts as one
            address. While more than three quarters of `max_connections` are open, an address may have a quarter of
            `max_connections` if that is less. On a server without tokens, any call counts.
        max_connection_age_seconds: How long a connection may last at most. Before that, at a time that differs for each
            connection, the server asks its client to make another one, and streams end after half of this time with an
            error from which clients resume by themselves. So a certificate authority that was removed from
            `tls_client_ca` is of no use any more after this time. A scan of the latest rows cannot be resumed, so let
            this be at least twice `max_scan_seconds`.
        max_calls_per_connection: The most calls of one connection at once. The client queues further calls.
        min_ping_interval_seconds: The shortest interval of keepalive pings. A client that sends them more often is
            disconnected after the third one.
        follow_heartbeat_seconds: The interval of heartbeats on a stream of changes that waits for changes.
        base_maintenance_seconds: How often the server checks which columnar bases to rebuild.
        base_min_rows: The least number of rows for which a bucket gets a columnar base with `columnar_base=auto`.
        base_changed_share: A columnar base is rebuilt when the changes since it was built exceed this share of its
            rows.
        base_max_age_seconds: A columnar base that is older than this is rebuilt if anything has changed since it was
            built, even beyond `base_max_write_amplification`.
        base_max_write_amplification: The most bytes that rebuilding a columnar base may write, as a multiple of the
            bytes of the rows written since it was built. Whatever share of the rows has changed, the base is not
            rebuilt before enough rows were written.
        base_total_delta_bytes: The memory for the deltas of all buckets: what was written to each since its columnar
            base was built, and older states that scans still read. When the deltas exceed it, the buckets with the
            largest deltas lose their columnar bases until these are built again.
        base_cpu_share: The most CPU time for building the columnar bases of all tables, as a share of one core.
        sweep_seconds: How often the server checks in which tables expired rows are due to be removed.
        sweep_cpu_share: The most CPU time for removing the expired rows of all tables, as a share of one core.
        log_maintenance_seconds: How often the server rewrites small records of changelogs and removes old ones.
        partition_expiry_seconds: How often the server looks for partitions that the option `partition_ttl` of their
            table lets expire.
        max_retention_hold_bytes: The most bytes of one bucket's changelog that retention holds keep beyond the
            retention. A reader that needs more gets `PositionExpired`.
        catch_up_changes: A stream that asks for net changes gets them from each bucket in which it lags by more changes
            than this.
        catch_up_memory_bytes: The memory for the net changes of one bucket before they spill to disk. Computing them
            takes about three times as much in all.
        heartbeat_seconds: The interval of heartbeats on a scan that finds no rows to return.
        drain_seconds: How long running calls may continue after SIGTERM. Then scans end with `ServerDraining`. Streams
            of changes and waiting calls end at once. After the calls, the last writes are archived for at most as long
            again, or a second.
        snapshot_ttl_seconds: The time to live of a snapshot's lease, for pins that do not set one.
        consumer_ttl_seconds: A consumer that has had no stream and no commit for this long is deleted.
        max_consumers: The most consumers of all tables together.
        writer_ttl_seconds: A named writer without a request for this long is forgotten, and must be opened again.
        max_writers_per_bucket: The most writers that each bucket remembers at once: named writers, and the anonymous
            writers of clients that wrote to it within the last hour, one for each of their concurrent writes.
        max_transactions: The most transactions that are open at once, which means neither committed nor aborted.
        max_transaction_bytes: The most bytes that one transaction may stage.
        max_locked_keys: The most keys that all transactions together may lock. A locked key takes some 300 bytes.
        transaction_ttl_seconds: A transaction without calls for this long is aborted, unless it sets a time to live of
            its own.
        committed_transaction_seconds: How long a commit is remembered, so that repeating it gives the same answer.
            Commits without an id are
            remembered for an hour, and the last commit of a job for as long as its tables exist.
        max_snapshot_leases: The most leases on snapshots at once.
        max_snapshot_bytes: The most bytes on disk that only snapshots keep. Beyond this limit, new snapshots are
            refused.
        block_cache_bytes: The memory for blocks that lookups by key and updates read, shared by all buckets. The
            default of `scankv serve` is a sixteenth of the memory that the server may have.
        write_buffer_bytes: The memory for writes that are not in table files yet, shared by all buckets. At most
            an eightieth of the disk, or 1/320 of one smaller than 5 GiB, which workers divide.
        result_cache_bytes: The memory of the result cache, which answers repeated queries while their table does not
            change. One result takes at most a sixteenth of it. 0 disables the cache.
        min_free_bytes: The disk space that writes leave free, the reserve: while less is free, upserts and new tables
            are refused with `DiskFull`. Reads, deletes, drops, retention and compaction continue and may use it. On a
            disk that is smaller than twenty times this, the reserve is a twentieth of the disk. 0 disables it.
        max_open_buckets: The most buckets that stay open while they are not in use. Beyond this limit, the least
            recently used are closed, except those used within the last minute while file descriptors are plentiful. An
            open bucket takes about ten file descriptors, up to 256 more for its files, and 0.6 MiB of memory. Opening a
            bucket again takes about 20 ms.
        bucket_idle_seconds: A bucket that was not used for this long is closed.
        storage_threads: The number of threads for writes, lookups and syncs.
        max_clock_step_seconds: Commit times follow the machine's clock forward by at most this much at once. A greater
            step is a jump: it is logged, reported by `stats`, and not followed. See docs/operations/clocks.md.
        clock_trust_seconds: A jump forward is followed once the machine's clock has kept it for as long as the jump is
            wide, or for this long if the jump is wider.
        backup_location: Where backups are stored: a directory, best on another disk, or a URI such as
            `s3://bucket/backups`. Credentials come from the environment of the server. Empty: backups are refused.
        backup_every_seconds: How often the server creates a backup by itself. 0: only on request.
        backup_keep: How many backups the server keeps: after each one, it removes older ones, and the files that no
            backup needs any more. 0: all.
        archive_every_seconds: How often what was written since the last backup is copied to `backup_location`, so that
            tables can be restored as of any instant. At most so much is lost with a disk. 0: not.
        aggregators: The names of the aggregators of other packages that the server loads, as in their entry points in
            the group `scankv.aggregators`. A list in TOML; comma-separated elsewhere.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 7070
    workers: int = 1
    worker_timeout_seconds: float = 30.0
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    metrics_max_tables: int = 200
    http_port: int = 0
    http_host: str = "127.0.0.1"
    http_origins: tuple[str, ...] = ()
    http_access_log: bool = False
    http_session_seconds: float = 43_200.0
    http_session_idle_seconds: float = 3600.0
    http_sql_memory_bytes: int = 1024 * _MEBIBYTE
    http_sql_seconds: float = 60.0
    log_level: str = "info"
    log_format: str = "text"
    slow_request_seconds: float = 10.0
    insecure: bool = False
    tokens: str = ""
    jwt_issuer: str = ""
    jwt_audience: str = ""
    jwt_keys: str = ""
    jwt_ca: str = ""
    jwt_grants: str = ""
    jwt_grants_claim: str = "groups"
    jwt_principal_claim: str = "sub"
    jwt_shares_principals: bool = False
    jwt_algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    jwt_leeway_seconds: float = 30.0
    jwt_max_key_age_seconds: float = 86_400.0
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    audit_log: str = ""
    audit_output: str = ""
    audit_reads: bool = False
    max_caller_share: float = 0.75
    max_caller_scans: int = 0
    max_caller_requests_per_second: float = 0.0
    max_caller_bytes_per_second: int = 0
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    max_live_scans: int = 256
    max_live_scans_per_bucket: int = 64
    max_waiting_scans: int = 64
    admission_wait_seconds: float = 1.0
    stall_timeout_seconds: float = 30.0
    max_scan_seconds: float = 3600.0
    heartbeat_seconds: float = 1.0
    max_followers: int = 4096
    base_maintenance_seconds: float = 1.0
    base_min_rows: int = 100_000
    base_changed_share: float = 0.1
    base_max_age_seconds: float = 86_400.0
    base_max_write_amplification: float = 32.0
    base_total_delta_bytes: int = 512 * _MEBIBYTE
    base_cpu_share: float = 0.25
    sweep_seconds: float = 1.0
    sweep_cpu_share: float = 0.05
    max_waiting_calls: int = 10_000
    max_request_bytes_in_flight: int = 128 * _MEBIBYTE
    max_unread_answer_bytes: int = 512 * _MEBIBYTE
    request_receive_seconds: float = 30.0
    min_ping_interval_seconds: float = 5.0
    max_connections: int = 10_000
    max_unauthenticated_connections: int = 100
    max_connection_age_seconds: float = 43_200.0
    max_calls_per_connection: int = MIN_CALLS_PER_CONNECTION
    log_maintenance_seconds: float = 5.0
    partition_expiry_seconds: float = 60.0
    catch_up_changes: int = 100_000
    catch_up_memory_bytes: int = 32 * _MEBIBYTE
    max_retention_hold_bytes: int = 8 * 1024 * _MEBIBYTE
    follow_heartbeat_seconds: float = 10.0
    drain_seconds: float = 30.0
    snapshot_ttl_seconds: float = 600.0
    consumer_ttl_seconds: float = 7 * 86_400.0
    max_consumers: int = 10_000
    writer_ttl_seconds: float = 7 * 86_400.0
    max_writers_per_bucket: int = 100_000
    max_transactions: int = 1000
    max_locked_keys: int = 1_000_000
    max_transaction_bytes: int = 4 * 1024 * _MEBIBYTE
    transaction_ttl_seconds: float = 3600.0
    committed_transaction_seconds: float = 7 * 86_400.0
    max_snapshot_leases: int = 1000
    max_snapshot_bytes: int = 64 * 1024 * _MEBIBYTE
    block_cache_bytes: int = 64 * _MEBIBYTE
    write_buffer_bytes: int = 128 * _MEBIBYTE
    result_cache_bytes: int = 16 * _MEBIBYTE
    min_free_bytes: int = 1024 * _MEBIBYTE
    max_open_buckets: int = 1024
    bucket_idle_seconds: float = 300.0
    storage_threads: int = 4
    max_clock_step_seconds: float = 300.0
    clock_trust_seconds: float = 86_400.0
    backup_location: str = ""
    backup_every_seconds: float = 0.0
    backup_keep: int = 0
    archive_every_seconds: float = 10.0
    aggregators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError naming the setting and what it may be."""
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(
                    f"{name} must be between {_text(low)} and {_text(high)}, not {_text(value)}", option=name
                )
        if self.log_level not in LOG_LEVELS:
            raise UsageError(f"log_level must be {' or '.join(LOG_LEVELS)}, not {self.log_level}", option="log_level")
        if self.log_format not in LOG_FORMATS:
            raise UsageError(
                f"log_format must be {' or '.join(LOG_FORMATS)}, not {self.log_format}", option="log_format"
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise UsageError("tls_certificate and tls_key need each other: give both or neither", option="tls_key")
        if self.audit_output:
            parse_audit_output(self.audit_output)
        if self.audit_reads and not self.is_audited:
            raise UsageError("audit_reads needs audit_log or audit_output: give one of them too", option="audit_reads")
        if self.tls_client_ca and not self.tls_certificate:
            raise UsageError("tls_client_ca needs tls_certificate and tls_key: give them too", option="tls_client_ca")
        self._check_jwt()
        self._check_http()
        if self.workers > 1 and self.port + self.workers > RANGES["port"][1]:
            raise UsageError(
                f"port = {self.port}: each of the {self.workers} workers needs one of the ports after it: give a port "
                f"of at most {_text(RANGES['port'][1] - self.workers)}",
                option="port",
            )
        if 0 < self.max_caller_bytes_per_second < MIN_BYTES_PER_SECOND:
            raise UsageError(
                f"max_caller_bytes_per_second must be 0 (no limit) or at least {MIN_BYTES_PER_SECOND:,}, not "
                f"{self.max_caller_bytes_per_second:,}",
                option="max_caller_bytes_per_second",
            )
        if missing := self.missing_protection:
            if not self.insecure:
                raise UsageError(
                    f"host = {self.host}: other machines can reach this address, and the server has {missing}: give "
                    "--tls-certificate, --tls-key and --tokens (or jwt_issuer), or listen on loopback; to let "
                    "all callers in nevertheless, give --insecure",
                    option="host",
                )

        if self.metrics_port and not is_loopback(self.metrics_host) and not (self.tls_certificate or self.insecure):
            raise UsageError(
                f"metrics_host = {self.metrics_host}: other machines can reach this address, and the server has no "
                "TLS: give --tls-certificate and --tls-key, or listen on loopback; to let all callers read the metrics "
                "unencrypted, give --insecure",
                option="metrics_host",
            )

        if (self.backup_every_seconds or self.backup_keep) and not self.backup_location:
            raise UsageError(
                "backup_every_seconds and backup_keep need backup_location: give a directory, or a URI such as "
                "s3://bucket/backups",
                option="backup_location",
            )

    def _check_http(self) -> None:
        if not self.http_port:
            return
        if missing := self._missing_protection_of(self.http_host):
            if not self.insecure:
                raise UsageError(
                    f"http_host = {self.http_host}: other machines can reach this address, and the server has "
                    f"{missing}: give --tls-certificate, --tls-key and --tokens (or jwt_issuer), or listen on "
                    "loopback; to let all callers in nevertheless, give --insecure",
                    option="http_host",
                )
        if self.tls_client_ca:
            raise UsageError(
                "http_port and tls_client_ca exclude each other, because the gateway has no certificate of a client: "
                "run `scankv http` with one",
                option="http_port",
            )
        if not (self.tls_certificate or is_loopback(self.host) or self.host.strip("[]") in ("0.0.0.0", "::")):
            raise UsageError(
                f"http_port needs TLS if the server listens on {self.host} only: the gateway does not send tokens "
                "unencrypted; listen on 0.0.0.0 or on loopback, or give --tls-certificate and --tls-key",
                option="http_port",
            )

    def _check_jwt(self) -> None:
        if not self.jwt_issuer:
            for name in ("jwt_audience", "jwt_keys", "jwt_ca", "jwt_grants"):
                if getattr(self, name):
                    raise UsageError(f"{name} needs jwt_issuer: set it, too", option="jwt_issuer")
            return
        for name in ("jwt_audience", "jwt_grants", "jwt_grants_claim", "jwt_principal_claim", "jwt_algorithms"):
            if not getattr(self, name):
                raise UsageError(f"jwt_issuer needs {name}: set it, too", option=name)
        if unknown := sorted(set(self.jwt_algorithms) - set(ALGORITHMS)):
            raise UsageError(
                f"jwt_algorithms must be of {', '.join(ALGORITHMS)}, not {', '.join(unknown)}", option="jwt_algorithms"
            )
        if self.jwt_keys and self.jwt_ca:
            raise UsageError("jwt_keys and jwt_ca exclude each other: nothing is fetched", option="jwt_ca")
        if not self.jwt_keys and (problem := url_problem(self.jwt_issuer)):
            raise UsageError(
                f"keys cannot be fetched from jwt_issuer = {self.jwt_issuer}: {problem}; give another url, or the file "
                "jwt_keys",
                option="jwt_issuer",
            )

    @property
    def jwt(self) -> JwtSettings | None:
        """Whose JSON web tokens are accepted. None: no JSON web token is accepted."""
        if not self.jwt_issuer:
            return None
        return JwtSettings(
            issuer=self.jwt_issuer,
            audience=self.jwt_audience,
            keys=Path(self.jwt_keys) if self.jwt_keys else None,
            ca=Path(self.jwt_ca) if self.jwt_ca else None,
            grants=Path(self.jwt_grants),
            grants_claim=self.jwt_grants_claim,
            principal_claim=self.jwt_principal_claim,
            shares_names=self.jwt_shares_principals,
            algorithms=self.jwt_algorithms,
            leeway_seconds=self.jwt_leeway_seconds,
            max_key_age_seconds=self.jwt_max_key_age_seconds,
        )

    @property
    def asks_for_tokens(self) -> bool:
        """Whether clients need tokens."""
        return bool(self.tokens or self.jwt_issuer)

    @property
    def memory_budget(self) -> int:
        """The bytes of memory that the settings let the server take, approximately. Most loads need much less."""
        return (
            PROCESS_BYTES
            + self.block_cache_bytes
            + self.write_buffer_bytes
            + self.result_cache_bytes
            + self.base_total_delta_bytes
            + _REQUEST_COPIES * self.max_request_bytes_in_flight
            + self.max_unread_answer_bytes
            + _CHUNKS_OF_SCAN * self.max_live_scans * self.chunk_bytes
        )

    @property
    def is_audited(self) -> bool:
        """Whether the server keeps an audit log."""
        return bool(self.audit_log or self.audit_output)

    @property
    def caller_limits(self) -> CallerLimits:
        """The limits of callers whose tokens do not set their own."""
        return CallerLimits(
            scans=self.max_caller_scans,
            requests_per_second=self.max_caller_requests_per_second,
            bytes_per_second=self.max_caller_bytes_per_second,
        )

    @property
    def missing_protection(self) -> str:
        """What the server lacks if other machines can reach it, as in `no TLS and no tokens`; empty for nothing."""
        return self._missing_protection_of(self.host)

    def _missing_protection_of(self, host: str) -> str:
        if is_loopback(host):
            return ""
        lacking = [] if self.tls_certificate else ["no TLS"]
        return " and ".join([*lacking, *([] if self.asks_for_tokens else ["no tokens"])])


def _text(number: float) -> str:
    return f"{int(number):,}" if float(number).is_integer() else f"{number:,}"


def load_config(
    flags: Mapping[str, object],
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    memory_bytes: int | None = None,
) -> ServerConfig:
    """Loads the settings. Of flag, environment, file and default, the first that has a setting wins.

    Args:
        flags: Values by setting name. None means not given. Strings are converted.
        config_file: A TOML file with settings at its top level.
        environ: Environment variables; `SCANKV_DRAIN_SECONDS` sets `drain_seconds`.
            The settings in `NOT_FROM_ENVIRONMENT` have none.
        memory_bytes: The memory limit of the server, to which the defaults are fitted. None: they are not.

    Raises:
        UsageError: A setting does not exist or its value is not allowed; the file cannot be read.
    """
    known = get_type_hints(ServerConfig)
    values: dict[str, object] = {}
    for source, found in (
        ("the configuration file", _read_file(config_file) if config_file else {}),
        ("the environment", _from_environment(environ or {}, known)),
        ("the command line", {name: value for name, value in flags.items() if value is not None}),
    ):
        for name, value in found.items():
            if name in _RENAMED:
                raise UsageError(f'{source} has the setting "{name}", which is now "{_RENAMED[name]}"', option=name)
            if name not in known:
                raise UsageError(f'{source} has the unknown setting "{name}"{did_you_mean(name, known)}', option=name)
            if name == "data" and "://" in str(value):
                # As a path, it would be a directory named `s3:` below the working directory.
                raise UsageError(f"data must be a local directory, not {str(value)!r}", option=name)
            values[name] = _convert(name, value, known[name])
    if memory_bytes is not None:
        values = _fitting_defaults(memory_bytes) | values
    if "data" not in values:
        raise UsageError("the data directory is not given: --data DIR, or SCANKV_DATA", option="data")
    return ServerConfig(**values)  # type: ignore[arg-type]


def _fitting_defaults(memory_bytes: int) -> dict[str, object]:
    """Returns the defaults that depend on the memory limit: shares of it, mostly where the usual default is more."""
    defaults: dict[str, Any] = {field.name: field.default for field in fields(ServerConfig)}
    shares = {name: max(int(RANGES[name][0]), memory_bytes // part) for name, part in SHARES_OF_MEMORY.items()}
    fitted: dict[str, object] = {
        name: share for name, share in shares.items() if share < defaults[name] or name in _ALWAYS_A_SHARE
    }
    scans = max(8, memory_bytes // 8 // (_CHUNKS_OF_SCAN * DEFAULT_CHUNK_BYTES))
    if scans < defaults["max_live_scans"]:
        fitted["max_live_scans"] = scans
    return fitted


def as_toml(config: ServerConfig) -> str:
    """Returns the settings as a TOML file that `load_config` reads, each with its description as a comment."""
    descriptions = _descriptions()
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return "".join(
        f"{descriptions.get(name, '')}{name} = {toml_value(str(value) if isinstance(value, Path) else value)}\n"
        for name, value in values.items()
    )


def _descriptions() -> dict[str, str]:
    # Python omits docstrings with -OO; then there are no comments.
    text = inspect.cleandoc(ServerConfig.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    return {
        name: textwrap.fill(" ".join(meaning.split()), 100, initial_indent="\n# ", subsequent_indent="# ") + "\n"
        for name, meaning in entries
    }


def _read_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the configuration file {path} is not valid TOML: {error}") from error


def _from_environment(environ: Mapping[str, str], known: Mapping[str, type]) -> dict[str, object]:
    # Only settings, also those of earlier versions: SCANKV_URL and the like belong to the client.
    names = {f"SCANKV_{name.upper()}": name for name in (*known, *_RENAMED) if name not in NOT_FROM_ENVIRONMENT}
    return {names[key]: value for key, value in environ.items() if key in names}


def _convert(name: str, value: object, to: type) -> object:
    try:
        if to is bool and isinstance(value, str):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if to is bool and not isinstance(value, bool):
            raise TypeError
        if to == tuple[str, ...]:
            names = value.split(",") if isinstance(value, str) else value
            if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
                raise TypeError
            return tuple(each.strip() for each in names if each.strip())
        return to(value)
    except (KeyError, TypeError, ValueError):
        kinds = {bool: "true or false", int: "a whole number", float: "a number", tuple[str, ...]: "a list of names"}
        kind = kinds.get(to, to.__name__)
        raise UsageError(f"{name} must be {kind}, not {value!r}", option=name) from None
