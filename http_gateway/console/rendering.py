"""Pages from templates. Every value is escaped, so `<script>` in a row stays text."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from scankv.formats.text import to_text
from scankv.model.counts import counted

if TYPE_CHECKING:
    import pyarrow as pa

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

_LONGEST_TEXT: Final = 300
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(number: float) -> str:
    """Returns a number of bytes for people."""
    for unit in _UNITS:
        if number < 1024 or unit == _UNITS[-1]:
            return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1024
    raise AssertionError("the last unit takes every number")


def duration_text(seconds: float) -> str:
    """Returns a duration for people."""
    if seconds < 120:
        return f"{seconds:,.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds / 3600:,.0f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("http_gateway.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
_ENVIRONMENT.filters |= {
    "size": size_text,
    "duration": duration_text,
    "number": "{:,}".format,
    "counted": counted,
}


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
    text = (files("http_gateway.console") / "static" / name).read_text()
    return Response(text, headers={"Cache-Control": "max-age=3600"}, media_type=FILES[name])


def no_icon() -> Response:
    """Returns that there is no icon, for which browsers ask unbidden."""
    return Response(status_code=204, headers={"Cache-Control": "max-age=86400"})


def cells_of(rows: pa.Table) -> list[list[str | None]]:
    """Returns the values of rows as text, each not too long for a cell; None for a null."""
    columns = [_texts(to_text(column.combine_chunks())) for column in rows.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _texts(column: pa.StringArray) -> list[str | None]:
    return [
        text if text is None or len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
        for text in column.to_pylist()
    ]
