"""The OpenAPI description of all operations, made from their declarations."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from http_gateway.operation import JSON
from http_gateway.parameters import Repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_gateway.operation import Operation
    from http_gateway.parameters import Parameter

_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "reason"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, what is allowed, and what to do."},
        "reason": {"type": "string", "description": "Machine-readable; stable across versions."},
        "code": {"type": "string", "description": "The status of gRPC."},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        "retry_after": {"type": "number", "description": "Seconds after which a retry makes sense."},
    },
}
_TABLE: Final = {
    "name": "table",
    "in": "path",
    "required": True,
    "description": "The table, as database.table.",
    "schema": {"type": "string"},
    "example": "game.scores",
}


def describe_operations(operations: Sequence[Operation]) -> dict[str, Any]:
    """Returns an OpenAPI document of version 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ScanKV over HTTP",
            "version": metadata.version("scankv"),
            "description": "Every operation needs the role that its call over gRPC needs.",
        },
        "paths": {operation.path: {operation.method.lower(): _operation(operation)} for operation in operations},
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "responses": {
                "Problem": {
                    "description": "The request was refused, or could not be carried out.",
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    path = [_TABLE] if "{table}" in operation.path else []
    described = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*path, *map(_parameter, operation.parameters)],
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {
                    media_type: {"schema": {"type": "object" if media_type == "application/json" else "string"}}
                    for media_type in operation.media_types
                },
            },
            "default": {"$ref": "#/components/responses/Problem"},
        },
        # An empty requirement: a server may do without tokens.
        "security": [] if operation.is_open else [{"token": []}, {}],
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": operation.body}}}
    return described


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described = {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.meaning,
        "schema": parameter.schema,
    }
    if isinstance(parameter, Repeated):
        described |= {"style": "form", "explode": True}
    if parameter.example is not None:
        described["example"] = parameter.example
    return described
