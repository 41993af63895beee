"""A gateway in its own process, and requests to it over sockets."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from http_gateway.settings import GatewaySettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from pathlib import Path

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class HttpAnswer:
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Returns the body parsed as JSON."""
        return json.loads(self.body)


class HttpCaller:
    """Sends requests to a gateway, each over a connection of its own, from the address `source`."""

    def __init__(
        self, port: int, token: str | None = None, tls: ssl.SSLContext | None = None, source: str = "127.0.0.1"
    ) -> None:
        self.port = port
        self.source = (source, 0)
        self.token = token
        self.tls = tls

    def connection(self) -> http.client.HTTPConnection:
        """Returns a connection that is not open yet."""
        if self.tls is not None:
            return http.client.HTTPSConnection("localhost", self.port, timeout=_TIMEOUT_SECONDS, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_SECONDS, source_address=self.source)

    def headers(self, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the headers of a request, with the token."""
        return {**({} if self.token is None else {"Authorization": f"Bearer {self.token}"}), **(headers or {})}

    def get(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, **query: Any
    ) -> HttpAnswer:
        """Sends a request, and returns its answer."""
        return self._send(method, target(path, **query), None, self.headers(headers))

    def post(self, path: str, headers: Mapping[str, str] | None = None, **fields: str) -> HttpAnswer:
        """Sends a form as a browser does from a page of the gateway, and returns its answer."""
        own = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"http://127.0.0.1:{self.port}" if self.tls is None else f"https://localhost:{self.port}",
            **(headers or {}),
        }
        return self._send("POST", path, urlencode(fields), own)

    def _send(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> HttpAnswer:
        connection = self.connection()
        try:
            connection.request(method, path, body, headers=dict(headers))
            response = connection.getresponse()
            with response:
                named = {name.lower(): value for name, value in response.getheaders()}
                return HttpAnswer(response.status, named, response.read())
        finally:
            connection.close()


def target(path: str, **query: Any) -> str:
    """Returns a path with its query. A list is a parameter that is repeated."""
    return quote(path) + (f"?{urlencode(query, doseq=True)}" if query else "")


class GatewayProcess(HttpCaller):
    """A gateway of a server, as the server starts it. Its log goes to the file `log`, if there is one."""

    def __init__(self, url: str, log: Path | None = None, **settings: Any) -> None:
        self._log = log
        self.listener = socket.create_server(("127.0.0.1", 0))
        super().__init__(self.listener.getsockname()[1])
        self._settings = GatewaySettings(url=url, **settings)
        self.start()

    def start(self) -> None:
        """Starts the process, after the last one has ended."""
        number = self.listener.fileno()
        with nullcontext() if self._log is None else self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "http_gateway", str(number)],
                stdin=subprocess.PIPE,
                stderr=log,
                pass_fds=[number],
                env={**os.environ, "PYTHONWARNINGS": "error"},
            )
        assert self.process.stdin is not None
        self.process.stdin.write(f"{self._settings.to_json()}\n".encode())
        self.process.stdin.flush()

    def stop(self) -> int:
        """Ends the process as the end of its server does. Returns its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self.listener.close()
