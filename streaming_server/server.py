"""One server process: start, ready, drain, stop."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
import uuid
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc
import pyarrow as pa
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from scankv.model.errors import ScanKvError, ServerDraining, UsageError
from scankv.model.installing import command_to_install
from scankv.model.tracing import find_tracer
from scankv.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    backup_pb2,
    backup_pb2_grpc,
    bootstrap_pb2,
    bootstrap_pb2_grpc,
    consumer_pb2,
    consumer_pb2_grpc,
    lock_pb2,
    lock_pb2_grpc,
    lookup_pb2,
    partition_pb2,
    partition_pb2_grpc,
    scan_pb2,
    snapshot_pb2,
    snapshot_pb2_grpc,
    table_pb2,
    table_pb2_grpc,
    transaction_pb2,
    transaction_pb2_grpc,
    worker_pb2_grpc,
    write_pb2,
    write_pb2_grpc,
)
from streaming_server.access.audit_log import AuditLog
from streaming_server.access.audit_outputs import AuditFile, AuditOutput, audit_output
from streaming_server.access.authentication import Authenticator
from streaming_server.access.callers import TokenStore
from streaming_server.access.forwarded_peers import ForwardedPeers
from streaming_server.access.limits import CallerLimiter
from streaming_server.access.request_principals import RequestPrincipals
from streaming_server.addresses import address_of, is_loopback, why_not_listening
from streaming_server.clock import MachineClocks, SystemClocks
from streaming_server.config import SHARES_OF_MEMORY
from streaming_server.engine.tables.tables import Tables
from streaming_server.engine.tasks.background import Background, repeat
from streaming_server.engine.tasks.loop_turns import LoopTurns
from streaming_server.gateway_process import GatewaySupervisor, listen_for_gateway
from streaming_server.monitoring.endpoint import Endpoint
from streaming_server.monitoring.json_log import JsonFormatter
from streaming_server.monitoring.metrics_reader import MetricsReader, StatsSources
from streaming_server.scan.admission.admission import Admission, AdmissionLimits
from streaming_server.scan.admission.live_scans import ScanRegistry
from streaming_server.scan.admission.memory_pressure import CHECK_SECONDS, MemoryPressure
from streaming_server.scan.admission.unread_answers import UnreadAnswers
from streaming_server.scan.admission.waiting_calls import WaitingCalls
from streaming_server.scan.queries.result_cache import ResultCache
from streaming_server.services.activity import LOOK_SECONDS, ActivityReader
from streaming_server.services.admin import AdminService
from streaming_server.services.audit import AuditTrail
from streaming_server.services.authorization import CallGuard
from streaming_server.services.backup import BackupService
from streaming_server.services.bootstrap import BootstrapService
from streaming_server.services.calls import Calls
from streaming_server.services.connection_watch import ConnectionWatch
from streaming_server.services.connections import close_connection
from streaming_server.services.consumer import ConsumerService
from streaming_server.services.forwarding import Workers
from streaming_server.services.guarded_method import GuardedServer
from streaming_server.services.health import HealthService
from streaming_server.services.intake import MAX_MESSAGE_BYTES, WINDOW_BYTES, Intake
from streaming_server.services.lock import LockService
from streaming_server.services.lookup import LookupService
from streaming_server.services.partition import PartitionService
from streaming_server.services.permissions import Resources
from streaming_server.services.reflection import add_reflection
from streaming_server.services.routes import read_metrics_of_all
from streaming_server.services.routing import Router
from streaming_server.services.scan import ScanService
from streaming_server.services.snapshot import SnapshotService
from streaming_server.services.table import TableService
from streaming_server.services.tablets.changelogs import TabletChangelogs
from streaming_server.services.tablets.tablet_calls import QueryMemory
from streaming_server.services.tablets.tablet_queries import TabletQueries
from streaming_server.services.tablets.tablet_service import TabletService, notify_owners
from streaming_server.services.tls import https_context, server_credentials
from streaming_server.services.transaction import TransactionService
from streaming_server.services.view_loans import ViewLoans
from streaming_server.services.worker import OtherWorkers, WorkerService
from streaming_server.services.write import WriteService
from streaming_server.storage.files.file_limit import max_connections, raise_file_limit
from streaming_server.storage.files.memory_limit import memory_limit
from streaming_server.storage.tables.data_directory import DirectoryLocked, ForeignDirectory
from streaming_server.workers import CONNECTED, HEARTBEAT_SECONDS, alone

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from streaming_server.config import ServerConfig
    from streaming_server.workers import WorkerSettings

EXIT_FAILED, EXIT_LOCKED, EXIT_PORT_TAKEN, EXIT_FOREIGN_DIRECTORY = 1, 3, 4, 5

_SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (scan_pb2, "ScanService"),
        (table_pb2, "TableService"),
        (write_pb2, "WriteService"),
        (lookup_pb2, "LookupService"),
        (lock_pb2, "LockService"),
        (snapshot_pb2, "SnapshotService"),
        (transaction_pb2, "TransactionService"),
        (bootstrap_pb2, "BootstrapService"),
        (consumer_pb2, "ConsumerService"),
        (partition_pb2, "PartitionService"),
        (backup_pb2, "BackupService"),
        (admin_pb2, "AdminService"),
    )
)

_LAST_WORDS_SECONDS = 1.0
_OBJECTS_BEFORE_COLLECTION = 10_000
# How often the token file is checked for changes, and running streams for lost rights.
_WATCH_SECONDS = 1.0
# A thread that runs Python code keeps the event loop waiting for so long, 5 ms by default, whenever an event arrives.
_SWITCH_SECONDS = 0.0005
# Of the greatest age of a connection: when its client is asked to make another one, and how long a stream may last.
# gRPC asks up to a tenth earlier or later. A stream that ended before would resume over the same connection. A stream
# that began at the last moment ends before the connection does. The third is how long gRPC then waits for its calls.
_SHARE_OF_CONNECTION, _SHARE_OF_STREAMS, _SHARE_OF_GRACE = 0.4, 0.5, 0.55
_PENDING_CALLS = 8192
_METADATA_BYTES = 16 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 16 * 1024 * 1024  # in each arena of the allocator
_MAPPED_BYTES = 3 * 1024 * 1024  # more than the buffers of a chunk

_log = logging.getLogger(__name__)


class PortTaken(ScanKvError):
    """The address to listen on is in use, or does not belong to this machine."""

    code = "UNAVAILABLE"
    reason = "PORT_TAKEN"


class Server:
    """A ScanKV server in this process: `async with Server(config) as server` serves inside the block.

    Bound to the running event loop; leaving the block drains.

    Args:
        config: The settings of the server.
        clocks: The clocks of the machine. None: the real ones.
        loop_turns: Measures the turns of the event loop, for the statistics. None: nothing does.
        worker: What makes this process one of several worker processes of a server. None: it is the complete server.

    Attributes:
        address: The `HOST:PORT` on which the server listens, inside the block.
        incarnation: A unique id of this start.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        clocks: MachineClocks | None = None,
        loop_turns: LoopTurns | None = None,
        worker: WorkerSettings | None = None,
    ) -> None:
        self.config = config
        self._worker = worker
        self._clocks = clocks
        self._machine_clocks = clocks or SystemClocks()
        self._loop_turns = loop_turns
        self.incarnation = uuid.uuid4().hex
        self.address = ""

    async def __aenter__(self) -> Self:
        """Opens the data directory and listens.

        Raises:
            DirectoryLocked: Another server uses the directory.
            ForeignDirectory: The directory is neither empty nor a ScanKV data directory.
            PortTaken: The server cannot listen on the address.
            UsageError: The directory, the token file or a file of TLS cannot be used; the message says why.
            DataLoss: The directory cannot be used; the message says why.
            ScanKvError: A committed transaction cannot be applied.
        """
        raise_file_limit()
        _check_memory(self.config)
        # First, so that a server that cannot use these files leaves the data directory as it is.
        authenticator = self._make_authenticator()
        credentials = self._make_credentials()
        self._tables = self._open_tables()
        self._unread = UnreadAnswers(
            self.config.max_unread_answer_bytes, self.config.stall_timeout_seconds, close_connection
        )
        self._registry = self._make_registry()
        self._waiting = WaitingCalls(self.config.max_waiting_calls)
        self._health = HealthService()
        if self._worker is not None:
            peers = OtherWorkers(self._workers)
            self._shares = self._tables.transactions.set_peers(peers)
            self._tables.backups.set_peers(peers)
            self._tables.archive.set_peers(peers)
        self._server = grpc.aio.server(options=_channel_options(self.config, is_shared=self._worker is not None))
        pressure = MemoryPressure(memory_limit())
        self._connections = ConnectionWatch(
            self.config.request_receive_seconds,
            self.config.max_unauthenticated_connections,
            max_connections(self.config.max_connections),
        )
        self._intake = self._make_intake(pressure)
        self._not_ready: str | None = "the server is starting"
        self._audit_logs: list[AuditLog] = []
        self._monitoring = Endpoint(self._read_all_metrics, lambda: self._not_ready)
        try:
            await self._start(authenticator, credentials, pressure)
        except BaseException:
            await self._monitoring.close()
            await self._tables.close()
            await self._close_audit_logs()
            raise
        self._watching.start()
        if missing := self.config.missing_protection:
            _log.warning("listening on %s with %s, because of --insecure", self.address, missing)
        if self._worker is None:
            await self.announce_ready()
        else:
            self._not_ready = "other workers of the server are starting"
        return self

    async def announce_ready(self) -> None:
        """Connects to the other workers, and reports to health checks that the server is ready.

        A server of one process does so itself. The supervisor notifies a worker once every worker has been ready,
        because no worker can answer all calls before. When a worker is started again, the others stay ready.
        """
        if self._worker is not None:
            await self._workers.connect()
        for name in ("", *_SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._not_ready = None

    def _open_tables(self) -> Tables:
        """Opens the data directory. Raises the errors of `Tables`."""
        worker = self._worker
        self._calls_itself = worker or alone()
        self._workers = Workers(self._calls_itself, WINDOW_BYTES, self.config.stall_timeout_seconds)
        tables = Tables(
            self.config,
            clocks=self._clocks,
            placement=self._calls_itself.placement,
            lock=None if worker is None else worker.lock,
            lender=None if worker is None else ViewLoans(self._workers, worker.aliases),
            times=None if worker is None else worker.open_times(),
        )
        tables.tablets.notify_owners = partial(notify_owners, self._workers)
        tables.consumers.set_tablets(TabletChangelogs(self._workers, tables.clock))
        return tables

    def _make_registry(self) -> ScanRegistry:
        def admission(*, live: int, live_per_bucket: int) -> Admission:
            limits = AdmissionLimits(
                live=live,
                live_per_bucket=live_per_bucket,
                waiting=self.config.max_waiting_scans,
                wait_seconds=self.config.admission_wait_seconds,
                share=self.config.max_caller_share,
            )
            return Admission(limits)

        followers = self.config.max_followers
        return ScanRegistry(
            admission(live=self.config.max_live_scans, live_per_bucket=self.config.max_live_scans_per_bucket),
            following=admission(live=followers, live_per_bucket=followers),
            stall_timeout=self.config.stall_timeout_seconds,
            max_scan=self.config.max_scan_seconds,
            turns_with_events=None if self._loop_turns is None else self._loop_turns.count_turns_with_events,
            unread=self._unread,
            activity=self._tables.activity,
        )

    def _make_intake(self, pressure: MemoryPressure) -> Intake:
        self._forwarded = ForwardedPeers("" if self._worker is None else self._worker.peer_key)
        self._principals = RequestPrincipals()
        calls = Calls(self.config.slow_request_seconds, find_tracer(), self._forwarded)
        return Intake(
            self.config.max_request_bytes_in_flight,
            self.config.request_receive_seconds,
            calls,
            self._unread,
            pressure,
            received_bytes=self._connections.received_bytes,
        )

    async def _start(
        self, authenticator: Authenticator | None, credentials: grpc.ServerCredentials | None, pressure: MemoryPressure
    ) -> None:
        """Adds the services, listens, recovers the tables, and starts what runs in the background."""
        self._open_audit_logs()
        self._access = self._make_access(authenticator)
        watch: list[Callable[[], Coroutine[Any, Any, None]]] = [
            partial(repeat, CHECK_SECONDS, pressure.check),
            self._connections.run,
            partial(repeat, _WATCH_SECONDS, self._end_old_streams),
        ]
        if self._access is not None:
            watch.append(partial(repeat, _WATCH_SECONDS, self._access.check_streams))
        if authenticator is not None:
            watch.append(authenticator.run)
        self._activity = ActivityReader(
            self._tables, self._registry, self.incarnation, self._calls_itself.placement.number
        )
        watch.append(partial(repeat, LOOK_SECONDS, self._activity.measure_if_asked))
        self._add_services()
        port = self._listen(credentials)
        self._connections.ports |= {port} if self._worker is None else {port, self._worker.port}
        self.address = address_of(self.config.host, port)
        if self.config.http_port:
            watch.append(self._make_gateway().run)
        self._watching = Background(*watch)
        await self._listen_for_monitoring()
        await self._tables.recover()
        self._tables.start()
        await self._server.start()

    async def _end_old_streams(self) -> None:
        """Ends the streams that would keep their connections for too long."""
        self._registry.end_older(_SHARE_OF_STREAMS * self.config.max_connection_age_seconds)

    async def _listen_for_monitoring(self) -> None:
        """Listens for monitoring systems before tables are recovered, because that may take long."""
        if not self.config.metrics_port:
            return
        address = address_of(self.config.metrics_host, self.config.metrics_port)
        # On loopback, no other host can read or change what is sent, and probes need no certificate.
        is_encrypted = bool(self.config.tls_certificate) and not is_loopback(self.config.metrics_host)
        tls = https_context(self.config) if is_encrypted else None
        try:
            is_shared = self._worker is not None
            await self._monitoring.start(self.config.metrics_host, self.config.metrics_port, tls, is_shared=is_shared)
        except OSError as error:
            raise PortTaken(
                f"cannot listen on {address} for monitoring: {error.strerror}; give another --metrics-port or "
                "--metrics-host",
                address=address,
            ) from error
        _log.info("serving metrics on %s://%s/metrics", "http" if tls is None else "https", address)

    def _make_gateway(self) -> GatewaySupervisor:
        address = address_of(self.config.http_host, self.config.http_port)
        try:
            listener = listen_for_gateway(self.config)
        except OSError as error:
            raise PortTaken(
                f"cannot listen on {address} for HTTP: {error.strerror}; give another --http-port or --http-host",
                address=address,
            ) from error
        return GatewaySupervisor(self.config, self.address, listener, self._forwarded, self._principals)

    async def _read_all_metrics(self) -> tuple[str, bytes]:
        """Returns the metrics of all workers; they are read from this process if it is the complete server."""
        if self._worker is None:
            return await self._read_metrics()
        return await read_metrics_of_all(self._workers)

    async def _read_metrics(self) -> tuple[str, bytes]:
        # Imported on use, because a server without the port needs none of it.
        from streaming_server.monitoring.exposition import CONTENT_TYPE, render

        values = await self._metrics.read(is_ready=self._not_ready is None)
        return CONTENT_TYPE, await asyncio.to_thread(render, values)

    def _make_authenticator(self) -> Authenticator | None:
        if not self.config.asks_for_tokens:
            return None
        tokens = TokenStore(Path(self.config.tokens), self._wall_seconds) if self.config.tokens else None
        if self.config.jwt is None:
            return Authenticator(tokens)
        try:
            from streaming_server.access.jwt_verifier import JwtVerifier
        except ModuleNotFoundError as error:
            raise UsageError(
                f"jwt_issuer needs the package {error.name}, which is not installed; {command_to_install('oidc')}",
                option="jwt_issuer",
            ) from error
        return Authenticator(tokens, JwtVerifier(self.config.jwt, self._wall_seconds))

    def _make_access(self, authenticator: Authenticator | None) -> CallGuard | None:
        config, clocks = self.config, self._machine_clocks
        if authenticator is None and not config.is_audited and not config.caller_limits.is_any:
            return None
        return CallGuard(
            Resources(self._tables, self._registry),
            authenticator,
            CallerLimiter(config.caller_limits, clocks.monotonic),
            AuditTrail(self._audit_logs, clocks.monotonic, reads=config.audit_reads) if self._audit_logs else None,
            self._principals if config.http_access_log else None,
            self._forwarded,
        )

    def _open_audit_logs(self) -> None:
        config, outputs = self.config, list[AuditOutput]()
        if config.audit_log:
            outputs.append(AuditFile(Path(config.audit_log)))
        if config.audit_output:
            outputs.append(audit_output(config.audit_output, self._calls_itself.stdout))
        self._audit_logs = [AuditLog(output, self._wall_nanos) for output in outputs]

    async def _close_audit_logs(self) -> None:
        for log in self._audit_logs:
            await asyncio.to_thread(log.close)

    def _wall_nanos(self) -> int:
        return self._machine_clocks.wall_nanos()

    def _wall_seconds(self) -> float:
        return self._machine_clocks.wall_nanos() / 1e9

    def _add_services(self) -> None:
        writes = WriteService(self._tables, self._workers)
        version = metadata.version("scankv")
        results = ResultCache(self.config.result_cache_bytes)
        scans = ScanService(
            self._tables,
            self._registry,
            results,
            self.incarnation,
            self._workers,
            chunk_bytes=self.config.chunk_bytes,
            heartbeat_seconds=self.config.heartbeat_seconds,
            follow_heartbeat_seconds=self.config.follow_heartbeat_seconds,
        )
        admin = AdminService(
            self._tables,
            self._registry,
            results,
            self._waiting,
            writes,
            self._intake,
            self._loop_turns,
            self.incarnation,
            version,
            self._read_metrics,
            self._activity,
        )
        self._metrics = MetricsReader(
            StatsSources(
                tables=self._tables,
                registry=self._registry,
                results=results,
                waiting=self._waiting,
                writes=writes,
                intake=self._intake,
                limiter=None if self._access is None else self._access.limiter,
                audit_logs=self._audit_logs,
                loop_turns=self._loop_turns,
                incarnation=self.incarnation,
                version=version,
            ),
            self.config.metrics_max_tables,
        )
        # It has the methods of a server that generated code calls.
        router = Router(self._workers, self._tables, QueryMemory(results, self._waiting))
        server: Any = GuardedServer(
            self._intake,
            self._server,
            self._registry.turns,
            self._access,
            router,
            self._connections,
            self._tables.activity,
        )
        scans.add_to_server(server)
        lookups = LookupService(self._tables, self._registry, results, self._waiting)
        lookups.add_to_server(server)
        table_pb2_grpc.add_TableServiceServicer_to_server(TableService(self._tables, self._worker), server)
        write_pb2_grpc.add_WriteServiceServicer_to_server(writes, server)
        lock_pb2_grpc.add_LockServiceServicer_to_server(LockService(self._tables), server)
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(SnapshotService(self._tables, self._workers), server)
        transactions = TransactionService(self._tables, is_worker=self._worker is not None)
        transaction_pb2_grpc.add_TransactionServiceServicer_to_server(transactions, server)
        bootstrap_pb2_grpc.add_BootstrapServiceServicer_to_server(BootstrapService(self._tables), server)
        queries = TabletQueries(self._tables, self._registry, results, self._waiting, lookups)
        worker_pb2_grpc.add_TabletServiceServicer_to_server(TabletService(self._tables, self._workers, queries), server)
        if self._worker is not None:
            tables = self._tables
            worker_service = WorkerService(self._shares, tables.backups, tables.archive.part)
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker_service, server)
        consumer_pb2_grpc.add_ConsumerServiceServicer_to_server(ConsumerService(self._tables), server)
        partition_pb2_grpc.add_PartitionServiceServicer_to_server(PartitionService(self._tables), server)
        backup_pb2_grpc.add_BackupServiceServicer_to_server(BackupService(self._tables), server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        add_reflection(server, (*_SERVICES, health.SERVICE_NAME))

    def _make_credentials(self) -> grpc.ServerCredentials | None:
        return server_credentials(self.config) if self.config.tls_certificate else None

    def _listen(self, credentials: grpc.ServerCredentials | None) -> int:
        port = self._listen_on(self.config.port, credentials)
        if self._worker is not None:
            # gRPC loads the certificate of an object only for the first port.
            self._listen_on(self._worker.port, self._make_credentials())
        self._server.add_insecure_port(self._calls_itself.address_of(self._calls_itself.placement.number))
        return port

    def _listen_on(self, port: int, credentials: grpc.ServerCredentials | None) -> int:
        address = address_of(self.config.host, port)
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            bound = 0
        if bound == 0:
            reason = why_not_listening(self.config.host, port)
            raise PortTaken(f"cannot listen on {address}: {reason}; give another --port or --host", address=address)
        return int(bound)

    async def __aexit__(self, *_: object) -> None:
        """Drains the server, then closes every bucket in order.

        The server takes no new calls and gives running calls `drain_seconds`. Scans that run longer end with
        `ServerDraining`, which their readers have a second to receive. Scans that follow a changelog, and calls that
        wait for a change or a locked key, end that way at once.
        """
        self._not_ready = "the server is draining"
        self._registry.close()
        self._waiting.close()
        self._tables.transactions.key_locks.close(
            ServerDraining("the server is shutting down: begin the transaction again once it has restarted")
        )
        await self._watching.close()
        await self._health.enter_graceful_shutdown()
        draining = ServerDraining(
            "the server is shutting down and has ended the scan: resume it once the server is back"
        )
        self._registry.end_followers(draining)
        timer = asyncio.get_running_loop().call_later(self.config.drain_seconds, self._registry.end_all, draining)
        try:
            await self._server.stop(self.config.drain_seconds + _LAST_WORDS_SECONDS)
        finally:
            timer.cancel()
            # Last, so that monitoring systems see the drain. Metrics are read from the tables.
            await self._monitoring.close()
            await self._tables.close()
            await self._close_audit_logs()
            await self._workers.close()


_EXIT_CODES = {
    DirectoryLocked: EXIT_LOCKED,
    PortTaken: EXIT_PORT_TAKEN,
    ForeignDirectory: EXIT_FOREIGN_DIRECTORY,
}


def run(config: ServerConfig, worker: WorkerSettings | None = None) -> int:
    """Serves until SIGTERM or SIGINT, then drains; a second signal ends the process at once.

    Prints one line on stdout when the server is ready; logs go to stderr. Every file that the process creates is
    private to its user (umask 077), because RocksDB has no option for that.

    Args:
        config: The settings of the server.
        worker: What makes this process one of several worker processes. It then stops as well when its standard input
            ends, which shows that its supervisor has ended. None: it is the complete server.

    Returns:
        The exit code: 0 after a drain; 3 when the data directory is locked; 4 when the port is taken; 5 when the data
        directory does not belong to ScanKV; 1 for any other reason not to start. A second signal ends the process with
        128 plus the number of the signal; acknowledged writes are safe, as after a crash.
    """
    os.umask(0o077)
    # Arrow's own allocator does not return the memory of large requests. With the system's allocator, the server takes
    # a quarter less memory after a load.
    pa.set_memory_pool(pa.system_memory_pool())
    _keep_free_memory()
    sys.setswitchinterval(_SWITCH_SECONDS)
    start_log(config, worker)
    turns = LoopTurns()
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
            runner.run(_serve(config, turns, worker))
    except ScanKvError as error:
        sys.stderr.write(f"scankv: error: {error.message}\n")
        return exit_code_of(error)
    return 0


def exit_code_of(error: ScanKvError) -> int:
    """Returns the exit code of a server that does not start because of an error."""
    return _EXIT_CODES.get(type(error), EXIT_FAILED)


def _check_memory(config: ServerConfig) -> None:
    """Warns of settings that let the server take more memory than it may have: the kernel would kill it."""
    limit = memory_limit()
    if limit is not None and config.memory_budget > limit:
        _log.warning(
            "the settings let the server take %d MiB of memory, and it may have %d MiB: raise the memory limit, or "
            "lower %s or max_live_scans",
            config.memory_budget >> 20,
            limit >> 20,
            ", ".join(SHARES_OF_MEMORY),
        )


def start_log(config: ServerConfig, worker: WorkerSettings | None = None) -> None:
    """Begins to log to stderr, as the settings say."""
    handler = logging.StreamHandler(sys.stderr)
    of_process = {} if worker is None else {"worker": worker.placement.number}
    name = "".join(f" {kind} {number}" for kind, number in of_process.items())
    text = logging.Formatter(f"%(asctime)s %(levelname)s{name} %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(**of_process) if config.log_format == "json" else text)
    # A worker begins with the handler of its supervisor, from which it is forked.
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=worker is not None)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_not_a_lost_client)


def _is_not_a_lost_client(record: logging.LogRecord) -> bool:
    """Keeps gRPC from logging a traceback for each client that goes while its answer is being sent.

    A client could fill the disk with them.
    """
    return not (isinstance(record.msg, str) and record.msg.startswith("ExecuteBatchError raised in core"))


def _keep_free_memory() -> None:
    """Lets the allocator keep as much free memory for its next buffers as one large request takes.

    By default, glibc returns the buffers of a bulk request to the system after each use. Then the system clears and
    maps their pages for the next request, which takes up to an eighth of the processor time of a load.

    Larger buffers, such as rows of several MiB, go back to the system at once. They would leave gaps among other memory
    that no later row fits into, so a scan would take more memory the more such rows it reads.
    """
    # Other C libraries have no mallopt.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


async def _serve(config: ServerConfig, turns: LoopTurns, worker: WorkerSettings | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle_signal(number: int) -> None:
        # A worker gets the same signal from a terminal and from its supervisor, which kills it if need be.
        if stop.is_set() and worker is None:
            _log.warning("ending at once on a second signal")
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle_signal, number)
    all_ready = asyncio.Event()
    if worker is not None:
        loop.add_reader(sys.stdin.fileno(), _read_supervisor, all_ready)
    async with Server(config, loop_turns=turns, worker=worker) as server:

        async def announce_ready() -> None:
            await all_ready.wait()
            if not stop.is_set():
                await server.announce_ready()
                _report(CONNECTED)

        # What is loaded now stays until the end. Otherwise each full garbage collection would visit it, and hold the
        # event loop for 15 to 60 ms.
        gc.freeze()
        # A scan of a thousand buckets creates several objects for each. If collections began before it ends, they would
        # soon count as old, and bring about full collections of all open buckets, which take 100 ms.
        gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
        sys.stdout.write(f"scankv ready on {server.address}\n")
        sys.stdout.flush()
        _log.info("serving %s on %s as incarnation %s", config.data, server.address, server.incarnation)
        _log.info("lookups and updates have a block cache of %d MiB", config.block_cache_bytes >> 20)
        supervised = Background(partial(repeat, HEARTBEAT_SECONDS, _send_heartbeat), announce_ready)
        if worker is not None:
            supervised.start()
        await stop.wait()
        _log.info("draining for at most %s seconds", config.drain_seconds)
    await supervised.close()
    _log.info("stopped")


async def _send_heartbeat() -> None:
    """Reports to the supervisor that the event loop runs."""
    _report(b"\n")


def _report(what: bytes) -> None:
    # A supervisor that is frozen reads nothing.
    os.set_blocking(sys.stdout.fileno(), False)
    with suppress(BlockingIOError):
        os.write(sys.stdout.fileno(), what)


def _read_supervisor(all_ready: asyncio.Event) -> None:
    """Reads the report that all workers have been ready.

    Once the supervisor has ended, ends the worker as a crash does: another server may wait for the data directory.
    """
    if not os.read(sys.stdin.fileno(), 1):
        _log.error("the supervisor has ended, and so does this worker")
        os._exit(EXIT_FAILED)
    all_ready.set()


def _millis(seconds: float) -> int:
    """Returns milliseconds for gRPC, which has 32 bits for them: up to 24 days."""
    return min(2**31 - 1, int(seconds * 1000))


def _channel_options(config: ServerConfig, *, is_shared: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", -1),
        # Only uncompressed messages, as all clients of ScanKV send them: 20 KB of gzip may mean 20 MiB, and gRPC would
        # decompress them before they are counted. 90 of them kept other clients waiting for ten seconds.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # A second server on the same port would start, and get some of the connections. Workers are to share them.
        ("grpc.so_reuseport", int(is_shared)),
        # The listener counts the connections. Without these limits, connections could take the files that buckets need
        # for writing, and a connection that sends nothing would stay for two minutes.
        ("grpc.max_allowed_incoming_connections", max_connections(config.max_connections)),
        ("grpc.server_handshake_timeout_ms", int(config.request_receive_seconds * 1000)),
        ("grpc.max_connection_age_ms", _millis(_SHARE_OF_CONNECTION * config.max_connection_age_seconds)),
        ("grpc.max_connection_age_grace_ms", _millis(_SHARE_OF_GRACE * config.max_connection_age_seconds)),
        # The most that gRPC receives of each call before the server reads it. Both options are needed: with probing,
        # gRPC widens the window of every stream to the capacity of the network.
        ("grpc.max_concurrent_streams", config.max_calls_per_connection),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        # By default, gRPC refuses some calls with more than 8 KiB of metadata, which a token may have.
        ("grpc.max_metadata_size", _METADATA_BYTES),
        # By default, a client that sends keepalive pings more often than every five minutes is disconnected.
        ("grpc.http2.min_ping_interval_without_data_ms", int(config.min_ping_interval_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Received calls that the event loop has not started yet: gRPC drops some beyond the first number, and all
        # beyond the second. The defaults are 1,000 and 3,000, which a few clients reach together after a long step.
        ("grpc.server.max_pending_requests", _PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _PENDING_CALLS),
    ]
