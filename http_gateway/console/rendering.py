"""Pages from templates. Every value is escaped, so `<script>` in a row stays text."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from scankv.formats.amounts import duration, size
from scankv.formats.table_sheets import BASE_HEADERS, disk_text
from scankv.formats.text import to_text
from scankv.model import lazy_compute as pc
from scankv.model.counts import counted

# No script at all; the style is the only file that a page loads.
POLICY: Final = (
    "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; img-src 'self'"
)
# The live page has one script of our own, which reads events of its own site, and makes text only.
LIVE_POLICY: Final = (
    f"{POLICY}; script-src 'self'; connect-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
)
FILES: Final = {"console.css": "text/css", "live.css": "text/css", "live.js": "text/javascript"}
"""The files that pages load, with their media types."""

_DIGITS: Final = 16
_LONGEST_TEXT: Final = 300
# The columns of sheets whose cells are aligned right, as texts with units.
_AMOUNTS: Final = frozenset(
    {"rows", "log offset", "on disk", "changes", "age", "last write", *BASE_HEADERS} - {"unused because"}
)


def label(name: str) -> str:
    """Returns a label of the command line as one of the console, which begins with a capital."""
    return name[:1].upper() + name[1:]


@cache
def _file_address(name: str) -> str:
    """Returns the address of one of `FILES`, which is another one after the file has changed, in spite of caches."""
    return f"/{name}?v={hashlib.sha256(_file_text(name).encode()).hexdigest()[:_DIGITS]}"


@cache
def _file_text(name: str) -> str:
    return (files("http_gateway.console") / "static" / name).read_text()


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("http_gateway.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_ENVIRONMENT.filters |= {
    "address": _file_address,
    "size": size,
    "duration": duration,
    "disk": disk_text,
    "label": label,
    "number": "{:,}".format,
    "counted": counted,
}
_ENVIRONMENT.globals["AMOUNTS"] = _AMOUNTS


def page(name: str, status: int = 200, policy: str = POLICY, **values: Any) -> Response:  # noqa: ANN401
    """Returns a page.

    Args:
        name: The name of the template.
        status: The status of the answer.
        policy: What the browser may load and run.
        values: What the template needs.
    """
    text = _ENVIRONMENT.get_template(name).render(**values)
    return Response(text, status, {"Content-Security-Policy": policy}, "text/html")


def static_file(name: str) -> Response:
    """Returns one of `FILES`."""
    return Response(_file_text(name), headers={"Cache-Control": "max-age=3600"}, media_type=FILES[name])


def no_icon() -> Response:
    """Returns that there is no icon, for which browsers ask unbidden."""
    return Response(status_code=204, headers={"Cache-Control": "max-age=86400"})


def cells_of(rows: pa.Table) -> list[list[str | None]]:
    """Returns the values of rows as text, each not too long for a cell; None for a null. Large rows take a while."""
    columns = [_texts(to_text(_cut(column.combine_chunks()))) for column in rows.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _cut(column: pa.Array) -> pa.Array:
    """Returns texts and binary values without what is too long for a cell, so that it is never converted."""
    if pa.types.is_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, _LONGEST_TEXT + 1)
    if pa.types.is_binary(column.type):
        # A byte has two digits.
        return pc.binary_slice(column, 0, _LONGEST_TEXT // 2 + 1)
    return column


def _texts(column: pa.StringArray) -> list[str | None]:
    return [
        text if text is None or len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
        for text in column.to_pylist()
    ]
