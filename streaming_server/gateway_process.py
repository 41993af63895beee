"""The HTTP gateway as a child of the server: started, watched, started again, and ended with the server.

A process of its own, because making JSON and HTML would take the interpreter from scans. The server only knows the
child's command line and settings. These name files, and contain one secret: the key by which the server believes the
child for whom it makes a call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import UsageError
from scankv.model.installing import command_to_install
from streaming_server.addresses import address_of, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streaming_server.access.forwarded_peers import ForwardedPeers
    from streaming_server.access.request_principals import RequestPrincipals
    from streaming_server.config import ServerConfig

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
# A child that has run for so long has not failed because of its settings.
_LONG_LIFE_SECONDS: Final = 60.0
_LAST_WORDS_SECONDS: Final = 10.0
# The gateway gets only these variables, since others may have tokens and the keys of object stores.
_VARIABLES: Final = frozenset({"LANG", "LANGUAGE", "LD_LIBRARY_PATH", "TMPDIR", "TZ"})
_PREFIXES: Final = ("LC_", "PYTHON", "GRPC_", "ARROW_", "MALLOC_")


class GatewaySupervisor:
    """Keeps a gateway running, from `run` to its cancellation. Bound to the event loop.

    The server listens, and every child inherits the socket. So a port in use is noticed at the start, and connections
    wait while a child is started again. The child ends when its standard input does, however the server ends.

    Args:
        config: The settings of the server.
        address: Where the gRPC server listens.
        listener: The socket of the HTTP port.
        forwarded: Where each child is believed for whom it makes calls.
        principals: Knows whose requests the children log.
    """

    def __init__(
        self,
        config: ServerConfig,
        address: str,
        listener: socket.socket,
        forwarded: ForwardedPeers,
        principals: RequestPrincipals,
    ) -> None:
        self._settings = _settings(config, address)
        self._listener = listener
        self._forwarded = forwarded
        self._principals = principals

    async def run(self) -> None:
        """Runs one child after another. If cancelled, it ends the child."""
        pause = _FIRST_PAUSE_SECONDS
        scheme = "https" if self._settings["tls_certificate"] else "http"
        port = self._listener.getsockname()[1]
        _log.info("serving HTTP and the console on %s://%s", scheme, address_of(self._settings["host"], port))
        try:
            while True:
                started = time.monotonic()
                with self._forwarded.believe() as key:
                    code = await self._run_child(key)
                if time.monotonic() - started >= _LONG_LIFE_SECONDS:
                    pause = _FIRST_PAUSE_SECONDS
                _log.error("the HTTP gateway has ended with code %d, and is started again in %g s", code, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        finally:
            self._listener.close()

    async def _run_child(self, key: str) -> int:
        number = self._listener.fileno()
        child = await asyncio.create_subprocess_exec(
            # -P: a directory that the server was started in must not provide the program.
            *(sys.executable, "-P", "-m", "http_gateway", str(number)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[number],
            env=environment_of_gateway(os.environ),
        )
        assert child.stdin is not None
        assert child.stderr is not None
        logging_ = asyncio.create_task(_log_lines(child.stderr, self._principals))
        try:
            # Over a pipe: others can read the command line and the environment.
            child.stdin.write(f"{json.dumps({**self._settings, 'forwarding_key': key})}\n".encode())
            return await child.wait()
        finally:
            child.stdin.close()
            await _end(child)
            await logging_


def environment_of_gateway(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that the interpreter of the gateway and its libraries need."""
    return {name: value for name, value in environ.items() if name in _VARIABLES or name.startswith(_PREFIXES)}


def listen_for_gateway(config: ServerConfig) -> socket.socket:
    """Returns a socket that listens on the HTTP port.

    Raises:
        OSError: The address cannot be listened on.
        UsageError: The packages of the gateway are not installed.
    """
    missing = [name for name in ("starlette", "uvicorn", "jinja2", "cryptography") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"http_port needs the package {missing[0]}, which is not installed; {command_to_install('http')}",
            option="http_port",
        )
    host = config.http_host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, config.http_port), family=family, backlog=256)


def _settings(config: ServerConfig, address: str) -> dict[str, Any]:
    """Returns the values of the line that `http_gateway.settings.GatewaySettings.from_json` reads."""
    host, _, port = address.rpartition(":")
    wildcards = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
    target = address_of(wildcards.get(host, host), int(port))
    paths = {name: getattr(config, name) for name in ("tls_certificate", "tls_key")}
    # On loopback, no other host can read what is sent, and users of this machine need no certificate.
    is_encrypted = bool(config.tls_certificate) and not is_loopback(config.http_host)
    return {
        "host": config.http_host,
        **{name: str(Path(path).absolute()) if path and is_encrypted else "" for name, path in paths.items()},
        "origins": config.http_origins,
        "url": f"{'scankvs' if config.tls_certificate else 'scankv'}://{target}",
        "server_certificate": str(Path(config.tls_certificate).absolute()) if config.tls_certificate else "",
        "server_key": str(Path(config.tls_key).absolute()) if config.tls_key else "",
        "insecure": config.insecure,
        "access_log": config.http_access_log,
        "log_level": config.log_level,
        "sessions": str(config.data.absolute() / "console"),
        "session_seconds": config.http_session_seconds,
        "session_idle_seconds": config.http_session_idle_seconds,
        "sql_memory_bytes": config.http_sql_memory_bytes,
        "sql_seconds": config.http_sql_seconds,
    }


async def _log_lines(stream: asyncio.StreamReader, principals: RequestPrincipals) -> None:
    """Logs what a child says as the server logs, so that all lines have its format."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the buffer, which has been emptied
            continue
        if not line:
            return
        _log_again(line, principals)


def _log_again(line: bytes, principals: RequestPrincipals) -> None:
    """Logs a line of `http_gateway.child_log`, or what the interpreter of the child says by itself."""
    try:
        record = json.loads(line)
        level, logger, message, fields = (record[name] for name in ("level", "logger", "message", "fields"))
    except (ValueError, TypeError, KeyError):
        _log.info("%s", line.decode(errors="replace").rstrip())
        return
    if "request_id" in fields:
        fields["user"] = principals.take(fields["request_id"]) or None
        # As JSON, since the issuer of web tokens chooses the names.
        message += f", user {json.dumps(fields['user'])}"
    logging.getLogger(logger).log(level, "%s", message, extra=fields)


async def _end(child: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_LAST_WORDS_SECONDS):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
