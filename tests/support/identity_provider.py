"""An issuer of JSON web tokens: an HTTP server on loopback with discovery, keys, and ways to fail."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

if TYPE_CHECKING:
    from pathlib import Path

AUDIENCE = "scankv"
DISCOVERY = "/.well-known/openid-configuration"


def make_key(algorithm: str = "ES256") -> Any:
    """Makes a private key for an algorithm."""
    if algorithm.startswith("ES"):
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
        return ec.generate_private_key(curves[algorithm])
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, 2048)


def public_jwk(key: Any, name: str | None, **members: Any) -> dict[str, Any]:
    """Returns the public key as a JSON web key."""
    kind = {ec.EllipticCurvePrivateKey: ECAlgorithm, rsa.RSAPrivateKey: RSAAlgorithm}
    algorithm: Any = next((each for base, each in kind.items() if isinstance(key, base)), OKPAlgorithm)
    made = algorithm.to_jwk(key.public_key(), as_dict=True)
    made.pop("key_ops", None)
    return {**made, "use": "sig", **({} if name is None else {"kid": name}), **members}


def public_pem(key: Any) -> bytes:
    """Returns the public key in PEM."""
    made: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return made


def encoded(part: object) -> str:
    """Encodes a part of a token."""
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """Makes tokens with keys of its own.

    Attributes:
        url: The claim `iss`.
        keys: The private keys by name. Tokens are signed with the last one.
        algorithm: The algorithm of the keys.
    """

    def __init__(self, url: str = "https://issuer.example.com", algorithm: str = "ES256") -> None:
        self.url = url
        self.algorithm = algorithm
        self.keys = {"first": make_key(algorithm)}

    def rotate(self, name: str) -> None:
        """Replaces all keys by a new one."""
        self.keys = {name: make_key(self.algorithm)}

    def key_set(self) -> dict[str, Any]:
        """Returns the public keys as a JSON web key set."""
        return {"keys": [public_jwk(key, name) for name, key in self.keys.items()]}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Returns the claims of a valid token, with changes. None removes a claim."""
        now = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 600, "groups": ["analysts"]}
        return {name: value for name, value in {**claims, **changes}.items() if value is not None}

    def token(self, *, key: Any = None, headers: dict[str, Any] | None = None, **changes: Any) -> str:
        """Issues a token."""
        name = list(self.keys)[-1]
        headers = {"kid": name} if headers is None else headers
        return jwt.encode(self.claims(**changes), key or self.keys[name], self.algorithm, headers=headers)


class IdentityProvider(Issuer):
    """An issuer that publishes its keys.

    Attributes:
        requests: The paths that were asked for.
        answers: Other answers than the usual ones, by path: a status and a body.
        silent: While set, the provider takes requests and does not answer them.
    """

    def __init__(self, *, certificate: tuple[Path, Path] | None = None, algorithm: str = "ES256") -> None:
        self.requests: list[str] = []
        self.answers: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self.silent = threading.Event()
        self._closing = threading.Event()
        provider = self

        class PublishesKeys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests.append(self.path)
                while provider.silent.is_set() and not provider._closing.wait(0.01):
                    pass
                status, body, headers = provider._answer(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class QuietHttpServer(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Clients that break the connection are part of the tests."""

        self._server = QuietHttpServer(("127.0.0.1", 0), PublishesKeys)
        scheme, host = "http", "127.0.0.1"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme, host = "https", "localhost"
        super().__init__(f"{scheme}://{host}:{self._server.server_address[1]}/realm", algorithm)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def _answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        path = path.removeprefix("/realm")
        if path in self.answers:
            return self.answers[path]
        if path == DISCOVERY:
            return 200, json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode(), {}
        return (200, json.dumps(self.key_set()).encode(), {}) if path == "/keys" else (404, b"", {})

    def answer(self, path: str, body: bytes, status: int = 200, **headers: str) -> None:
        """Sets another answer for a path."""
        self.answers[path] = status, body, headers

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
