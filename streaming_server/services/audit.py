"""Which calls the audit log records, and what it says about them. It never has rows, keys, predicates or tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from streaming_server.services.permissions import NamedTable, NamedTables, ids_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import grpc
    from google.protobuf.message import Message

    from streaming_server.access.audit_log import AuditLog
    from streaming_server.access.callers import CallerIdentity
    from streaming_server.current_call import CurrentCall
    from streaming_server.services.permissions import Permission

MAX_UNAUTHENTICATED: Final = 1000
"""The most refused calls of unknown callers in each minute with a line of their own, since any program can make such
calls."""

_REFUSED: Final = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED"})
# Fields of requests whose values are neither secret nor data of rows. The tokens of transactions are not here.
_RESOURCES: Final = (
    "snapshot_id",
    "lock_id",
    "scan_id",
    "consumer_id",
    "owner",
    "lease_id",
    "id",
    "current",
    "principal",
)
_MAX_RESOURCE: Final = 200  # characters
_MAX_TABLES: Final = 50


class AuditTrail:
    """Decides which calls the audit log records. Bound to the event loop.

    Args:
        logs: The audit logs, which get the same lines.
        monotonic: Returns monotonic seconds.
        reads: Whether calls that only read are recorded, too.

    Attributes:
        reads: Whether calls that only read are recorded, too.
    """

    def __init__(self, logs: Sequence[AuditLog], monotonic: Callable[[], float], *, reads: bool = False) -> None:
        self.reads = reads
        self._logs = logs
        self._monotonic = monotonic
        self._minute = 0.0
        self._unauthenticated = 0

    def begin(
        self, call: CurrentCall, permission: Permission, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AuditedCall:
        """Has a call recorded when it ends, if it changes something, names an owner or is refused, or if reads are."""
        audited = AuditedCall(self, call, permission, context)
        call.on_end = audited.end
        return audited

    def record(self, entry: dict[str, Any], code: str) -> None:
        """Adds a line to the audit log, unless it is one of too many refused calls of unknown callers."""
        if code in _REFUSED and entry["principal"] is None:
            minute = self._monotonic() // 60
            if minute != self._minute:
                if self._unauthenticated > MAX_UNAUTHENTICATED:
                    omitted = self._unauthenticated - MAX_UNAUTHENTICATED
                    self._add({"event": "unauthenticated_calls_omitted", "calls": omitted})
                self._minute, self._unauthenticated = minute, 0
            self._unauthenticated += 1
            if self._unauthenticated > MAX_UNAUTHENTICATED:
                return
        self._add(entry)

    def _add(self, entry: dict[str, Any]) -> None:
        # A line is the same in all logs.
        nanos = self._logs[0].now_nanos()
        for log in self._logs:
            log.add(entry, nanos)


class AuditedCall:
    """What the audit log says about one call.

    Attributes:
        caller: Who makes the call. None: not known yet, or refused.
        tables: The tables that it names.
    """

    __slots__ = (
        "_bytes",
        "_call",
        "_context",
        "_is_recorded",
        "_permission",
        "_resources",
        "_rows",
        "_trail",
        "caller",
        "tables",
    )

    def __init__(
        self,
        trail: AuditTrail,
        call: CurrentCall,
        permission: Permission,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        self._trail = trail
        self._call = call
        self._permission = permission
        self._is_recorded = permission.changes or trail.reads
        self._context = context
        self._bytes: int | None = None
        self._rows: int | None = None
        self._resources: dict[str, str] = {}
        self.caller: CallerIdentity | None = None
        self.tables: list[str] = []

    def read_request(self, request: Message, size: int) -> None:
        """Takes what the audit log says about a request.

        Args:
            request: The request.
            size: Its bytes.
        """
        self._bytes = size
        # Of a request that is denied, only the names are known that it has itself.
        scopes = [requirement.scope for requirement in self._permission.requirements]
        names = [str(getattr(request, scope.field)) for scope in scopes if isinstance(scope, NamedTable)]
        for scope in scopes:
            if isinstance(scope, NamedTables):
                names += getattr(request, scope.field)
        self.tables = [name[:_MAX_RESOURCE] for name in names if name]
        fields = request.DESCRIPTOR.fields_by_name
        self._is_recorded = self._is_recorded or self._names_another(request)
        if self._is_recorded:
            found = {name: getattr(request, name) for name in _RESOURCES if name in fields}
            for name, value in (found | self._ids_of(request)).items():
                if value:
                    self._resources[name] = value[:_MAX_RESOURCE]
            if "writer" in fields:
                (writer,) = ids_in(request, ["writer" if fields["writer"].message_type is None else "writer.id"])
                if writer:
                    self._resources["writer"] = writer[:_MAX_RESOURCE]
            if "set_options" in fields and (options := _options(request)):
                self._resources["options"] = options[:_MAX_RESOURCE]

    def _ids_of(self, request: Message) -> dict[str, str]:
        """Returns ids and principals in the messages of a request."""
        permission = self._permission
        fields = {each.field.rpartition(".")[2]: each.field for each in permission.owned if "." in each.field}
        if "." in permission.owner_field:
            fields["principal"] = permission.owner_field
        known = {name: field for name, field in fields.items() if name in _RESOURCES}
        return dict(zip(known, ids_in(request, known.values()), strict=True))

    def _names_another(self, request: Message) -> bool:
        """Whether a request makes something for another principal than that of its caller."""
        if not self._permission.owner_field:
            return False
        (named,) = ids_in(request, [self._permission.owner_field])
        return bool(named) and (self.caller is None or named != self.caller.principal)

    def read_response(self, response: Any) -> None:  # noqa: ANN401  # a message
        """Takes the number of rows from a response that has one."""
        rows = getattr(response, "rows", None)
        if isinstance(rows, int):
            self._rows = rows

    def end(self, code: str, seconds: float) -> None:
        """Records the call if it changes something, names an owner or was refused, or if reads are recorded.

        Args:
            code: The name of its status.
            seconds: How long it took.
        """
        if self._is_recorded or code in _REFUSED:
            self._trail.record(self._entry(code, seconds), code)

    def _entry(self, code: str, seconds: float) -> dict[str, Any]:
        caller, call = self.caller, self._call
        entry: dict[str, Any] = {
            "principal": (caller.principal or None) if caller is not None else None,
            "token_id": (caller.token_id or None) if caller is not None else None,
            "peer": call.client,
            "method": call.method,
            "tables": list(dict.fromkeys(self.tables))[:_MAX_TABLES],
        }
        if (name := _certificate_name(self._context)) is not None:
            entry["tls_client"] = name
        if self._resources:
            entry["resources"] = self._resources
        if self._bytes is not None:
            entry["request_bytes"] = self._bytes
        if self._rows is not None:
            entry["rows"] = self._rows
        entry |= {"code": code, "error": call.error or None, "seconds": round(seconds, 6)}
        return entry


def _options(request: Any) -> str:  # noqa: ANN401  # a message
    """Returns the table options that a request changes, by name. They are neither secret nor data of rows."""
    changed = dict.fromkeys(request.reset_options, "default") | dict(request.set_options)
    return ", ".join(f"{name}={value}" for name, value in sorted(changed.items()))


def _certificate_name(context: grpc.aio.ServicerContext[Any, Any]) -> str | None:
    """Returns the name in the certificate of a client; None without a certificate."""
    found = context.auth_context()
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        if (name := next(iter(found.get(key, ())), None)) is not None:
            return bytes(name).decode(errors="replace")[:_MAX_RESOURCE]
    return None
