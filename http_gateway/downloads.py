"""Downloads: the rows of a scan as Arrow, CSV or JSON, no faster than the reader takes them."""

from __future__ import annotations

import asyncio
import io
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from http_gateway.answers import StreamedResponse
from http_gateway.limits import DEFAULT_SCAN_ROWS, MAX_SCAN_ROWS
from http_gateway.parameters import Choice, Truth, WholeNumber
from http_gateway.problems import HttpRefusal, bad_request
from http_gateway.queries import COLUMNS, WHERE
from scankv.formats.csv_text import csv_header, csv_lines
from scankv.formats.json_text import json_lines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.responses import Response

    from aio_client import ScanStream
    from http_gateway.gateway import Gateway
    from http_gateway.operation import Call

MEDIA_TYPES: Final = {
    "arrow": "application/vnd.apache.arrow.stream",
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
    "json": "application/json",
}
FORMAT: Final = Choice(
    name="format",
    meaning="The format. Default: the first one in the header Accept, or jsonl.",
    words=tuple(MEDIA_TYPES),
)
QUOTE_FORMULAS: Final = Truth(
    name="quote_formulas",
    meaning="Whether to put an apostrophe before text that a spreadsheet would take for a formula. CSV only.",
    default=False,
)
PARAMETERS: Final = (
    FORMAT,
    WHERE,
    COLUMNS,
    WholeNumber(
        name="limit",
        meaning="The most rows. If there are more, which ones are returned is undefined.",
        default=DEFAULT_SCAN_ROWS,
        low=1,
        high=MAX_SCAN_ROWS,
    ),
    QUOTE_FORMULAS,
)


class _ArrowEncoder:
    """Makes an Arrow IPC stream in parts."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def start(self) -> bytes:
        return self._take()

    def encode(self, rows: pa.RecordBatch) -> bytes:
        self._writer.write_batch(rows)
        return self._take()

    def end(self) -> bytes:
        self._writer.close()
        return self._take()

    def _take(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


class _CsvEncoder:
    def __init__(self, schema: pa.Schema, *, quote_formulas: bool = False) -> None:
        self._names = schema.names
        self._quote_formulas = quote_formulas

    def start(self) -> bytes:
        return csv_header(self._names, quote_formulas=self._quote_formulas)

    def encode(self, rows: pa.RecordBatch) -> bytes:
        return bytes(csv_lines(rows, quote_formulas=self._quote_formulas).to_pybytes())

    def end(self) -> bytes:
        return b""


class _JsonLinesEncoder:
    def __init__(self, _schema: pa.Schema) -> None:
        pass

    def start(self) -> bytes:
        return b""

    def encode(self, rows: pa.RecordBatch) -> bytes:
        return bytes(json_lines(rows, portable=True).to_pybytes())

    def end(self) -> bytes:
        return b""


class _JsonEncoder:
    """Makes one JSON array, with a row on each line."""

    def __init__(self, _schema: pa.Schema) -> None:
        self._is_first = True

    def start(self) -> bytes:
        return b"["

    def encode(self, rows: pa.RecordBatch) -> bytes:
        data: bytes = json_lines(rows, portable=True).to_pybytes()
        before, self._is_first = b"\n" if self._is_first else b",\n", False
        # A JSON text on one line has no raw line break inside.
        return before + data.rstrip(b"\n").replace(b"\n", b",\n")

    def end(self) -> bytes:
        return b"\n]\n"


_Encoder: TypeAlias = "_ArrowEncoder | _CsvEncoder | _JsonLinesEncoder | _JsonEncoder"
MakeEncoder: TypeAlias = "Callable[[pa.Schema], _Encoder]"
_ENCODERS: Final[dict[str, MakeEncoder]] = {
    "arrow": _ArrowEncoder,
    "csv": _CsvEncoder,
    "jsonl": _JsonLinesEncoder,
    "json": _JsonEncoder,
}


async def download(gateway: Gateway, call: Call) -> Response:
    """Answers with the rows of a scan."""
    values = call.values
    format_, encoder = encoder_of(call)
    table = await gateway.client.table(call.table)
    scan = table.scan().limit(values["limit"])
    if values["where"] is not None:
        scan = scan.where(values["where"])
    if values["columns"] is not None:
        scan = scan.select(values["columns"])
    pieces = _pieces(gateway, scan.stream(), encoder)
    # The first piece is made before the answer begins, so that a scan that is refused is a problem with a status.
    first = await anext(pieces)
    name = f"{table.name}.{format_}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Vary": "Accept"}
    return StreamedResponse(first, pieces, MEDIA_TYPES[format_], headers)


def encoder_of(call: Call) -> tuple[str, MakeEncoder]:
    """Returns the format that a call asks for, and what makes its encoder. Raises HttpRefusal."""
    format_ = call.values["format"] or format_of(call.request.headers.get("accept", ""))
    if not call.values["quote_formulas"]:
        return format_, _ENCODERS[format_]
    if format_ != "csv":
        raise bad_request(f"quote_formulas is for the format csv, not {format_}: leave it out")
    return format_, partial(_CsvEncoder, quote_formulas=True)


def format_of(accept: str) -> str:
    """Returns the format that a header Accept asks for.

    Raises:
        HttpRefusal: It allows none of the formats.
    """
    allowed = [each.partition(";")[0].strip().lower() for each in accept.split(",") if each.strip()]
    for each in allowed:
        for format_, media_type in MEDIA_TYPES.items():
            if each == media_type.partition(";")[0]:
                return format_
        if each in ("application/x-ndjson", "application/*", "*/*"):
            return "jsonl"
        if each == "text/*":
            return "csv"
    if not allowed:
        return "jsonl"
    raise HttpRefusal(406, "NOT_ACCEPTABLE", f"the formats are {', '.join(MEDIA_TYPES.values())}")


async def _pieces(gateway: Gateway, stream: ScanStream, make_encoder: MakeEncoder) -> AsyncGenerator[bytes, None]:
    with gateway.downloads.take():
        async with stream:
            encoder = make_encoder(stream.schema)
            yield encoder.start()
            async for rows in stream:
                # In a thread, since thousands of rows would keep other requests waiting.
                yield await asyncio.to_thread(encoder.encode, rows)
            yield encoder.end()
