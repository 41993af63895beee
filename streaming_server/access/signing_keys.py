"""The public keys with which the issuer of JSON web tokens signs: from a file, or fetched from the issuer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.error import HTTPError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from scankv.model.errors import UsageError
from streaming_server.access.jwt_settings import identity_of, read_protected, url_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from streaming_server.access.jwt_settings import JwtSettings

_log = logging.getLogger(__name__)

_REFRESH_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 10.0
_FETCH_SECONDS: Final = 5.0
_MAX_DOCUMENT_BYTES: Final = 512 * 1024
_MAX_KEYS: Final = 100
# Each may be tried for a token, and trying one costs up to 0.1 ms.
_MAX_UNNAMED_KEYS: Final = 4
_MIN_RSA_BITS, _MAX_RSA_BITS = 2048, 8192
_EC_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.+?-----END \1-----", re.DOTALL)


class KeysUnusable(Exception):
    """Keys cannot be fetched or read. The message says why, for the log."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of the issuer. Immutable.

    Attributes:
        name: The id of the key, by which tokens name it. None: it has none.
        algorithms: The algorithms that it may be used with.
        public: The key.
        fingerprint: A hash that identifies the key.
    """

    name: str | None
    algorithms: frozenset[str]
    public: Any
    fingerprint: bytes


class KeySource(Protocol):
    """Where the keys of an issuer come from. Bound to the event loop."""

    def keys(self) -> Sequence[SigningKey]:
        """Returns the keys that are valid now; none if they are unknown."""

    async def renew(self) -> None:
        """Looks for new keys, unless that was done a moment ago. Waits for at most a few seconds."""

    def check(self) -> None:
        """Looks for new keys if that costs little. Called every second."""

    async def run(self) -> None:
        """Keeps the keys up to date until it is cancelled."""


def suitable_keys(keys: Sequence[SigningKey], name: str | None, algorithm: str) -> list[SigningKey]:
    """Returns the keys with which a token may have been signed: a few at most.

    Args:
        keys: All keys of the issuer.
        name: The key that the token names. None: it names none.
        algorithm: The algorithm of the token.
    """
    suited = [key for key in keys if algorithm in key.algorithms]
    named = [key for key in suited if key.name == name] if name is not None else []
    unnamed = [key for key in suited if key.name is None]
    if named or unnamed:
        return (named or unnamed)[:_MAX_UNNAMED_KEYS]
    # Without a name in the token, it must be plain which key is meant.
    return suited if name is None and len(suited) == 1 else []


class KeyFile:
    """The keys of a file, which is read again when it changes: a JSON web key set, or public keys in PEM.

    Raises:
        UsageError: The file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = identity_of(path)
        self._keys = _read_file(path)

    def keys(self) -> Sequence[SigningKey]:
        """See `KeySource`."""
        return self._keys

    async def renew(self) -> None:
        """See `KeySource`."""
        self.check()

    def check(self) -> None:
        """See `KeySource`."""
        identity = identity_of(self._path)
        if identity == self._seen:
            return
        self._seen = identity
        try:
            self._keys = _read_file(self._path)
        except UsageError as error:
            _log.error("the keys of tokens read last stay valid, because of an error: %s", error.message)
            return
        _log.info("read %d keys of tokens from %s, because it has changed", len(self._keys), self._path)

    async def run(self) -> None:
        """See `KeySource`. Returns at once, because `check` does everything."""


class IssuerKeys:
    """The keys that the issuer publishes, as OpenID Connect Discovery says.

    They are fetched every five minutes, and when a token names an unknown key, but at most every ten seconds. If that
    fails, the keys fetched last stay valid until they are too old. Fetching takes place in a thread, takes at most five
    seconds, follows no redirects, and reads at most 512 KiB.

    Args:
        settings: The issuer, and how long its keys are used.
        monotonic: Returns monotonic seconds.

    Raises:
        UsageError: The file with authorities cannot be used.
    """

    def __init__(self, settings: JwtSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._issuer = settings.issuer
        self._max_age = settings.max_key_age_seconds
        self._monotonic = monotonic
        self._context = _trusting(settings.ca)
        self._keys: Sequence[SigningKey] = ()
        self._fetched_at = 0.0
        self._attempted_at: float | None = None
        self._reported = ""
        self._wanted = asyncio.Event()
        self._round = asyncio.Event()
        self._thread: threading.Thread | None = None

    def keys(self) -> Sequence[SigningKey]:
        """See `KeySource`."""
        return self._keys if self._monotonic() - self._fetched_at <= self._max_age else ()

    async def renew(self) -> None:
        """See `KeySource`. A fetch that runs already is waited for."""
        running = self._wanted.is_set()
        if not running:
            if self._attempted_at is not None and self._monotonic() - self._attempted_at < _RETRY_SECONDS:
                return
            self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FETCH_SECONDS + 1):
                await self._round.wait()

    def check(self) -> None:
        """See `KeySource`. Fetches when it is time to."""
        pause = _RETRY_SECONDS if self._reported else _REFRESH_SECONDS
        if self._attempted_at is None or self._monotonic() - self._attempted_at >= pause:
            self._wanted.set()

    async def run(self) -> None:
        """See `KeySource`."""
        self._wanted.set()
        while True:
            await self._wanted.wait()
            self._attempted_at = self._monotonic()
            await self._attempt()
            self._wanted.clear()
            self._round.set()
            self._round = asyncio.Event()

    async def _attempt(self) -> None:
        try:
            keys = await self._fetch_in_thread()
        except KeysUnusable as error:
            problem = str(error)
            if problem != self._reported:
                stay = "the keys fetched last stay valid for now" if self.keys() else "none of its tokens are accepted"
                _log.error("the keys of %s cannot be fetched, so %s: %s", self._issuer, stay, problem)
            self._reported = problem
            return
        if self._reported or {key.fingerprint for key in keys} != {key.fingerprint for key in self._keys}:
            _log.info("fetched %d keys of %s", len(keys), self._issuer)
        self._keys, self._fetched_at, self._reported = keys, self._monotonic(), ""

    async def _fetch_in_thread(self) -> Sequence[SigningKey]:
        # Not in a pool of threads: the server would wait at its end for a thread that waits for the issuer.
        if self._thread is not None and self._thread.is_alive():
            raise KeysUnusable("the request before has not ended")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sequence[SigningKey] | KeysUnusable] = loop.create_future()

        def work() -> None:
            found: Sequence[SigningKey] | KeysUnusable
            try:
                found = self._fetch()
            except KeysUnusable as error:
                found = error
            except Exception as error:
                _log.exception("the keys of %s cannot be fetched", self._issuer)
                found = KeysUnusable(type(error).__name__)
            # The loop may be closed by now.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set_result, found)

        self._thread = threading.Thread(target=work, name="scankv-issuer-keys", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(_FETCH_SECONDS):
                await asyncio.wait([done])
        except TimeoutError:
            raise KeysUnusable(f"the issuer did not answer within {_FETCH_SECONDS:g} s") from None
        self._thread = None
        found = done.result()
        if isinstance(found, KeysUnusable):
            raise found
        return found

    def _fetch(self) -> Sequence[SigningKey]:
        deadline = time.monotonic() + _FETCH_SECONDS
        discovery = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        found = _parse_object(self._get(discovery, deadline), discovery)
        # Required by OpenID Connect Discovery 1.0, section 4.3.
        if found.get("issuer") != self._issuer:
            raise KeysUnusable(f"{discovery} is of another issuer: jwt_issuer must be exactly its issuer")
        url = found.get("jwks_uri")
        if not isinstance(url, str) or (problem := url_problem(url)):
            problem = problem if isinstance(url, str) else "there is none"
            raise KeysUnusable(f"the jwks_uri in {discovery} cannot be used: {problem}")
        return parse_key_set(self._get(url, deadline), url)

    def _get(self, url: str, deadline: float) -> bytes:
        try:
            left = max(deadline - time.monotonic(), 0.1)
            with _opener(url, self._context).open(url, timeout=left) as response:
                data = b""
                while block := response.read1(64 * 1024):
                    data += block
                    if len(data) > _MAX_DOCUMENT_BYTES:
                        raise KeysUnusable(f"{url} has more than {_MAX_DOCUMENT_BYTES:,} bytes")
                    if time.monotonic() > deadline:
                        raise KeysUnusable(f"{url} was not sent within {_FETCH_SECONDS:g} s")
                return data
        except HTTPError as error:
            error.close()
            raise KeysUnusable(f"{url} answers with status {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise KeysUnusable(f"{url}: {str(error)[:200] or type(error).__name__}") from error


class _RefusesRedirects(HTTPRedirectHandler):
    """A redirect could lead from https to http, or to a service inside the network of the server."""

    def redirect_request(self, *_: object) -> None:
        return None


def _opener(url: str, context: ssl.SSLContext) -> OpenerDirector:
    if url.startswith("https:"):
        return build_opener(HTTPSHandler(context=context), _RefusesRedirects)
    # A proxy would take the unencrypted request off this machine.
    return build_opener(HTTPHandler, ProxyHandler({}), _RefusesRedirects)


def _trusting(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{ca} has no certificates in PEM, or cannot be read", option="jwt_ca") from error


def _read_file(path: Path) -> Sequence[SigningKey]:
    data = read_protected(path, "file of keys", "jwt_keys", _MAX_DOCUMENT_BYTES)
    try:
        return parse_key_set(data, str(path)) if data.lstrip().startswith(b"{") else parse_pem(data, str(path))
    except KeysUnusable as error:
        raise UsageError(str(error), option="jwt_keys") from error


def parse_key_set(data: bytes, where: str) -> Sequence[SigningKey]:
    """Returns the keys of a JSON web key set (RFC 7517). Keys that tokens must not be signed with are left out.

    Raises:
        KeysUnusable: It is not a key set, or no key is left.
    """
    listed = _parse_object(data, where).get("keys")
    if not isinstance(listed, list) or len(listed) > _MAX_KEYS:
        raise KeysUnusable(f"{where} must have a list of at most {_MAX_KEYS} keys")
    keys = [key for each in listed if (key := _key_of(each)) is not None]
    if not keys:
        raise KeysUnusable(f"{where} has no public key of a kind that is supported: RSA, EC or Ed25519, for signatures")
    return keys


def parse_pem(data: bytes, where: str) -> Sequence[SigningKey]:
    """Returns the public keys, and those of certificates, in PEM.

    Raises:
        KeysUnusable: No key exists, too many keys exist, or a key is private or of another kind.
    """
    keys = []
    for match in _PEM.finditer(data):
        if b"PRIVATE" in match[1]:
            raise KeysUnusable(f"{where} has a private key: the server needs only the public one")
        try:
            is_certificate = match[1] == b"CERTIFICATE"
            public: Any = (
                x509.load_pem_x509_certificate(match[0]).public_key()
                if is_certificate
                else load_pem_public_key(match[0])
            )
        except (ValueError, UnsupportedAlgorithm) as error:
            raise KeysUnusable(f"{where} has a block that is neither a public key nor a certificate") from error
        algorithms = _algorithms_of(public)
        if not algorithms:
            raise KeysUnusable(f"{where} has a key of a kind or size that is not supported")
        keys.append(_signing_key(None, algorithms, public))
    if not 0 < len(keys) <= _MAX_UNNAMED_KEYS:
        raise KeysUnusable(f"{where} must have 1 to {_MAX_UNNAMED_KEYS} public keys in PEM, or a JSON web key set")
    return keys


def _parse_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KeysUnusable(f"{where} is not JSON") from error
    if not isinstance(found, dict):
        raise KeysUnusable(f"{where} must be a JSON object")
    return found


def _key_of(listed: object) -> SigningKey | None:
    """Returns a key of a key set, or None if tokens cannot be verified with it."""
    # A symmetric key is never used: any reader of the key set could sign with it.
    if not isinstance(listed, dict) or listed.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    name, algorithm = listed.get("kid"), listed.get("alg")
    if listed.get("use", "sig") != "sig" or not isinstance(name, str | None):
        return None
    try:
        public = PyJWK(listed).key
    except (PyJWTError, ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        return None
    algorithms = _algorithms_of(public)
    if algorithm is not None:
        algorithms &= {algorithm}
    return _signing_key(name, algorithms, public) if algorithms else None


def _signing_key(name: str | None, algorithms: frozenset[str], public: Any) -> SigningKey:  # noqa: ANN401  # of three classes
    encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return SigningKey(name, algorithms, public, hashlib.sha256(encoded).digest())


def _algorithms_of(public: object) -> frozenset[str]:
    """Returns the algorithms that a public key may be used with; none for a weak or private key."""
    if isinstance(public, rsa.RSAPublicKey) and _MIN_RSA_BITS <= public.key_size <= _MAX_RSA_BITS:
        return frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
    if isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in _EC_ALGORITHMS:
        return frozenset({_EC_ALGORITHMS[public.curve.name]})
    return frozenset({"EdDSA"}) if isinstance(public, ed25519.Ed25519PublicKey) else frozenset()
