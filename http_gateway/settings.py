"""The settings of one gateway. They contain paths of secrets, and one secret, which is not shown."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from scankv.model.errors import UsageError

_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?")

# At each heartbeat and at each sample, the server is asked.
_MIN_SECONDS: Final = 0.01
_MEBIBYTE: Final = 1024 * 1024
_LEAST: Final = {"max_event_streams": 1, "max_sql_queries": 1, "sql_memory_bytes": _MEBIBYTE}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How a gateway listens, and where its server is.

    Attributes:
        host: The address to listen on.
        tls_certificate: The certificate of the gateway and its chain, a PEM file. Empty: HTTP.
        tls_key: The private key of the certificate.
        tls_client_ca: The authorities that must sign the certificates of clients. Empty: clients need none.
        origins: The origins of other web sites whose pages may read answers, such as `https://example.com`.
        url: The gRPC server.
        server_certificate: The certificate of the gRPC server itself, which a gateway on the same machine trusts, under
            whichever name it has. Empty: the server has no TLS.
        server_key: The private key of this certificate.
        insecure: Whether to listen beyond this machine without TLS or tokens nevertheless.
        forwarding_key: By which the server believes this gateway for whom it makes a call. Empty: the server takes the
            gateway itself for the client of each call.
        charts_token_file: A file with the token with which the gateway samples the server for charts. Empty: it samples
            by `forwarding_key`, or only while a page with charts is open, with the token of its reader.
        charts_seconds: The time between two samples for charts, at least 0.01.
        access_log: Whether to log each request.
        log_level: As of the server.
        sessions: The directory of the sessions of the console. Empty: a temporary one, which is removed when the
            gateway ends.
        session_seconds: How long a session lasts at most.
        session_idle_seconds: How long a session lasts without use.
        request_seconds: How long a connection may take until its request is complete, and may stay without one.
        stall_seconds: How long a reader may take nothing of an answer before its connection is broken.
        heartbeat_seconds: The time between two heartbeats of a stream of events, at least 0.01. At each, the token is
            checked again.
        max_event_streams: The most streams of events at once, at least 1.
        max_connections: The most connections at once. A further one ends an idle connection: the oldest of those
            without an authenticated call or, while those have at most a tenth of all places, the oldest of all. If no
            connection is idle, the further one is closed as soon as it is made.
        sql_memory_bytes: How much memory a query in SQL may take, at least 1 MiB.
        sql_seconds: How long a query in SQL may take, with the time in which its reader takes the rows.
        max_sql_queries: The most queries in SQL at once, at least 1.
        max_unknown_connections: The most connections of one address that have not had an authenticated call. For a
            further one, the oldest ends that still awaits a request. On a server without tokens, any call counts.
    """

    host: str = "127.0.0.1"
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    origins: tuple[str, ...] = ()
    url: str = ""
    server_certificate: str = ""
    server_key: str = ""
    insecure: bool = False
    forwarding_key: str = field(default="", repr=False)
    charts_token_file: str = ""
    charts_seconds: float = 5.0
    access_log: bool = False
    log_level: str = "info"
    sessions: str = ""
    session_seconds: float = 43_200.0
    session_idle_seconds: float = 3600.0
    request_seconds: float = 10.0
    stall_seconds: float = 30.0
    heartbeat_seconds: float = 15.0
    max_event_streams: int = 512
    max_connections: int = 1000
    max_unknown_connections: int = 100
    sql_memory_bytes: int = 1024 * _MEBIBYTE
    sql_seconds: float = 60.0
    max_sql_queries: int = 4

    def __post_init__(self) -> None:
        """Raises UsageError naming the setting and what it may be."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise UsageError("tls_certificate and tls_key need each other: give both or neither", option="tls_key")
        if self.tls_client_ca and not self.tls_certificate:
            raise UsageError("tls_client_ca needs tls_certificate and tls_key: give them too", option="tls_client_ca")
        if not is_loopback(self.host) and not (self.tls_certificate or self.insecure):
            raise UsageError(
                f"host = {self.host}: other machines can reach this address, and the gateway has no TLS: give a "
                "certificate and its key, or listen on loopback; to send tokens and rows unencrypted nevertheless, "
                "give --insecure",
                option="host",
            )
        for name in ("heartbeat_seconds", "charts_seconds", "sql_seconds"):
            if (seconds := getattr(self, name)) < _MIN_SECONDS:
                raise UsageError(f"{name} = {seconds:g}: give at least {_MIN_SECONDS:g}", option=name)
        for name, least in _LEAST.items():
            if (number := getattr(self, name)) < least:
                raise UsageError(f"{name} = {number}: give at least {least}", option=name)
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"an origin must be like https://example.com or http://localhost:3000, without a path and without "
                    f"*, not {origin!r:.80}",
                    option="origins",
                )

    @property
    def is_encrypted(self) -> bool:
        """Whether the gateway serves HTTPS."""
        return bool(self.tls_certificate)

    def to_json(self) -> str:
        """Returns the settings as one line, which `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Returns the settings of a line of `to_json`."""
        values = json.loads(line)
        return cls(**{**values, "origins": tuple(values["origins"])})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
