"""Authenticates and authorises every call, before its handler runs. The table of permissions says what calls need."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from scankv.model.errors import PermissionDenied, ScanKvError, Unauthenticated
from scankv.model.forwarded_peers import FORWARDED_PEER
from scankv.model.names import table_of
from streaming_server.access.callers import ANYBODY, CallerIdentity
from streaming_server.access.certificates import read_certificate
from streaming_server.access.forwarded_peers import ForwardedPeers
from streaming_server.access.grants import Grants, Role
from streaming_server.access.limits import CallerLimiter, CallerLimits
from streaming_server.access.principals import OF_SERVER
from streaming_server.current_call import CALL_METADATA, CURRENT_CALL, current_client
from streaming_server.services.forwarding import certified_in
from streaming_server.services.permissions import (
    EveryTable,
    NamedById,
    NamedTable,
    NamedTables,
    Resources,
    SomeTable,
    ids_in,
    keep_visible,
)

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

    from streaming_server.access.authentication import Authenticator
    from streaming_server.access.certificates import ClientCertificate
    from streaming_server.access.request_principals import RequestPrincipals
    from streaming_server.current_call import Metadata
    from streaming_server.services.audit import AuditTrail
    from streaming_server.services.permissions import Permission, Requirement

ACTIVITY: Final = "scankv.v1.AdminService/Activity"
"""The only call that the server's own gateway may make for itself, without a token."""

GATEWAY: Final = CallerIdentity(f"{OF_SERVER}gateway", Grants(["read:*"]))
"""The caller of this call."""

_AUTHORIZATION: Final = "authorization"
_SCHEME: Final = "bearer "
_NO_TOKEN: Final = "the call has no token"
# As in the client. The server lets 16 KiB of metadata in.
_MAX_TOKEN: Final = 12 * 1024
_MAX_REFUSALS_LOGGED: Final = 100

_log = logging.getLogger(__name__)


class CallGuard:
    """Decides who may make which call. Bound to the event loop.

    Args:
        resources: Where ids in requests are resolved to tables.
        tokens: Verifies tokens. None: the server asks for none.
        limiter: Counts what each caller takes. None: without limits.
        audit: Records calls in the audit log. None: there is no audit log.
        principals: Remembers who makes the calls of the server's own gateway. None: nothing does.
        gateways: Knows the keys of the server's own gateways. None: it has none.

    Attributes:
        limiter: Counts what each caller takes.
        audit: Records calls in the audit log. None: there is no audit log.
    """

    def __init__(
        self,
        resources: Resources,
        tokens: Authenticator | None,
        limiter: CallerLimiter | None = None,
        audit: AuditTrail | None = None,
        principals: RequestPrincipals | None = None,
        gateways: ForwardedPeers | None = None,
    ) -> None:
        self._gateways = gateways or ForwardedPeers()
        self.limiter = limiter or CallerLimiter(CallerLimits(), time.monotonic)
        self.audit = audit
        self._resources = resources
        self._tokens = tokens
        self._principals = principals
        self._minute = 0.0
        self._refusals = 0

    @property
    def asks_for_tokens(self) -> bool:
        """Whether calls need a token."""
        return self._tokens is not None

    async def authenticate(
        self, context: grpc.aio.ServicerContext[Any, Any], method: str, *, is_forwarded: bool
    ) -> CallerIdentity:
        """Returns who makes a call, from its token, or without one from the certificate of its connection.

        Args:
            context: The call.
            method: The method, for the log.
            is_forwarded: Whether another worker makes it, which says who has a certificate.

        Raises:
            Unauthenticated: The call has no valid token, and no certificate with grants. Only the log has the reason.
        """
        if self._tokens is None:
            return ANYBODY
        metadata = CALL_METADATA.get()
        if method == ACTIVITY and self._gateways.is_own(metadata):
            return GATEWAY
        token, certificate = _token_of(metadata), None
        if token is not None:
            found = self._tokens.find(token) or await self._tokens.verify(token)
        elif any(name == _AUTHORIZATION for name, _ in metadata):
            found = "the call has more than one token, or too long a one, or something else instead"
        elif is_forwarded:
            named = certified_in(metadata)
            found = _NO_TOKEN if named is None else self._tokens.certified(*named)
        else:
            certificate = _certificate_of(context, metadata)
            found = _NO_TOKEN if certificate is None else self._tokens.identify(certificate)
        if isinstance(found, CallerIdentity):
            self._remember(found, context)
            return found
        self._log_refusal(f"refused {method} from {current_client() or context.peer()}: {found}")
        raise self._unauthenticated(certificate)

    def _remember(self, caller: CallerIdentity, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        call = CURRENT_CALL.get() if self._principals is not None else None
        if self._principals is not None and call is not None and call.client != context.peer():
            self._principals.remember(call.request_id, caller.principal)

    def renew(self, caller: CallerIdentity) -> CallerIdentity:
        """Returns a caller with the rights as of now, after the call has waited.

        Raises:
            Unauthenticated: The token was revoked or has expired in the meantime.
        """
        found = caller if self._tokens is None or caller is GATEWAY else self._tokens.renewed(caller)
        if isinstance(found, CallerIdentity):
            return found
        self._log_refusal(f"refused a running call of {caller.principal}: {found}")
        raise self._ended(caller)

    def _ended(self, caller: CallerIdentity) -> Unauthenticated:
        return self._unauthenticated() if caller.certificate_ends is None else _without_grants("of the call")

    def _unauthenticated(self, certificate: ClientCertificate | None = None) -> Unauthenticated:
        """Returns the error for every token or certificate that is not accepted, whatever the reason."""
        assert self._tokens is not None
        if certificate is not None:
            return _without_grants(str(certificate))
        return Unauthenticated(
            "the call has no valid token: name a file with one in SCANKV_TOKEN_FILE, or in option token_file of Spark, "
            f"or give it to connect(url, token=...); {self._tokens.accepted}"
        )

    def _log_refusal(self, message: str) -> None:
        """Logs a refused call, unless many were logged within the last minute: refusals must not fill the disk."""
        minute = time.monotonic() // 60
        if minute != self._minute:
            if self._refusals > _MAX_REFUSALS_LOGGED:
                _log.warning("%d more calls were refused for their tokens", self._refusals - _MAX_REFUSALS_LOGGED)
            self._minute, self._refusals = minute, 0
        self._refusals += 1
        if self._refusals <= _MAX_REFUSALS_LOGGED:
            _log.warning("%s", message)

    def authorize(self, caller: CallerIdentity, permission: Permission, request: Message) -> list[str]:
        """Checks that a caller may make a call.

        Returns:
            The tables that the request names by itself or by ids.

        Raises:
            PermissionDenied: The caller lacks a role.
            TableNotFound: A table does not exist. The message suggests only tables that the caller may read.
        """
        tables: list[str] = []
        for requirement in permission.requirements:
            tables += self._check(caller, requirement, request)
        return tables

    def _check(self, caller: CallerIdentity, requirement: Requirement, request: Message) -> list[str]:
        role, scope, grants = requirement.role, requirement.scope, caller.grants
        if isinstance(scope, NamedTable):
            name = table_of(getattr(request, scope.field))
            if not name and scope.may_be_empty:
                return self._check_somewhere(caller, role)
            return [self._check_named(caller, role, name, exists=scope.exists)]
        if isinstance(scope, NamedTables):
            names = [self._check_named(caller, role, table_of(name)) for name in getattr(request, scope.field)]
            return names or self._check_somewhere(caller, role)
        if isinstance(scope, NamedById):
            tables = sorted(set(map(table_of, scope.resolve(self._resources, *ids_in(request, scope.fields)))))
            for table in tables:
                if not grants.allow(role, table):
                    # Without the name of the table, which the caller may not know.
                    raise PermissionDenied(
                        f"the call needs the role {role.text} for every table of the {scope.what} that it names, which "
                        "the token does not grant: ask the operator of the server for a token with it",
                        role=role.text,
                    )
            return tables or self._check_somewhere(caller, role)
        if isinstance(scope, SomeTable):
            return self._check_somewhere(caller, role)
        assert isinstance(scope, EveryTable)
        if not grants.allow_everywhere(role):
            raise PermissionDenied(
                f"the call needs the role {role.text} for all tables, as in {role.text}:*, which the token does not "
                "grant: ask the operator of the server for a token with it",
                role=role.text,
            )
        return []

    def _check_named(self, caller: CallerIdentity, role: Role, name: str, *, exists: bool = True) -> str:
        grants = caller.grants
        if not grants.allow(role, name):
            raise PermissionDenied(
                f'the call needs the role {role.text} for table "{name}", which the token does not grant: ask the '
                "operator of the server for a token with it",
                role=role.text,
                table=name,
            )
        if exists and not grants.allow_everywhere(Role.READ):
            self._resources.tables.check_exists(name, lambda table: grants.allow(Role.READ, table))
        return name

    def _check_somewhere(self, caller: CallerIdentity, role: Role) -> list[str]:
        if not caller.grants.allow_somewhere(role):
            raise PermissionDenied(
                f"the call needs the role {role.text}, which the token does not grant for any table: ask the operator "
                "of the server for a token with it",
                role=role.text,
            )
        return []

    def keep_visible(self, caller: CallerIdentity, permission: Permission, response: object) -> None:
        """Removes from a response what the caller may not read."""
        if permission.visible:
            keep_visible(response, permission, caller.grants)

    async def check_streams(self) -> None:
        """Reads files again that have changed, and ends the streams whose callers have lost their rights."""
        if self._tokens is None:
            return
        self._tokens.reload()
        for scan in self._resources.registry.live:
            if scan.caller is not None and (error := self._refusal_of(scan.caller, scan.table)) is not None:
                self._resources.registry.end(scan, error)

    def _refusal_of(self, caller: CallerIdentity, table: str) -> ScanKvError | None:
        assert self._tokens is not None
        found = self._tokens.renewed(caller)
        if not isinstance(found, CallerIdentity):
            _log.warning("ending a stream of %s over %s: %s", caller.principal, table, found)
            return self._ended(caller)
        if not found.grants.allow(Role.READ, table):
            return PermissionDenied(
                f'the token no longer grants the role read for table "{table}", so the server ended the stream: ask '
                "the operator of the server for a token with it",
                role=Role.READ.text,
                table=table,
            )
        return None


def _without_grants(certificate: str) -> Unauthenticated:
    return Unauthenticated(
        f"the call has no token, and the token file of the server has no valid line for the client certificate "
        f"{certificate}: ask the operator of the server to give it grants with scankv tokens create PRINCIPAL "
        "--certificate CN=NAME, use a certificate that has not expired, or send a token"
    )


def _certificate_of(context: grpc.aio.ServicerContext[Any, Any], metadata: Metadata) -> ClientCertificate | None:
    """Returns the certificate of a connection. None: it has none, or its client makes the call for somebody else.

    Clients of a gateway must not get the rights of the gateway.
    """
    if any(name == FORWARDED_PEER for name, _ in metadata):
        return None
    found = context.auth_context().get("x509_pem_cert", ())
    return next((read_certificate(bytes(pem)) for pem in found), None)


def _token_of(metadata: Metadata) -> str | None:
    """Returns the token of a call; None without one, or with several."""
    found = [value for key, value in metadata if key == _AUTHORIZATION]
    if len(found) != 1 or not isinstance(found[0], str):
        return None
    value = found[0]
    if value[: len(_SCHEME)].lower() != _SCHEME or len(value) > len(_SCHEME) + _MAX_TOKEN:
        return None
    return value[len(_SCHEME) :]
