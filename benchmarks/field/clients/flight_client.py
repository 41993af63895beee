"""Arrow Flight: rows in an Arrow file at the server, which can filter and project, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from benchmarks import t4
from benchmarks.field.clients.field_client import BELOW, LOAD_ROWS, PROJECTED, FieldClient, time_calls
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NO_TABLE = "serves a file, not a table"


class ArrowFileServer:
    """Stores what `DoPut` sends in one Arrow file, and serves it, memory-mapped, in response to `DoGet`.

    Args:
        directory: Where the file is.
    """

    def __init__(self, directory: str) -> None:
        self._server = _FileService(Path(directory) / "t4.arrow")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()

    def url(self) -> str:
        """Returns the address that the server listens on."""
        return f"grpc://127.0.0.1:{self._server.port}"


class _FileService(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, path: Path) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._path = path

    def do_put(self, context: object, descriptor: object, reader: Any, writer: object) -> None:  # noqa: ANN401
        with self._path.open("wb") as file:
            with pa.ipc.new_file(file, reader.schema) as out:
                for chunk in reader:
                    out.write_batch(chunk.data)
            file.flush()
            os.fsync(file.fileno())

    def do_get(self, context: object, ticket: Any) -> flight.RecordBatchStream:  # noqa: ANN401
        asked = json.loads(ticket.ticket)
        names = asked["columns"] or t4.SCHEMA.names
        schema = pa.schema([t4.SCHEMA.field(name) for name in names])
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, self._batches(names, asked["below"])))

    def do_action(self, context: object, action: object) -> list[bytes]:
        return []

    def _batches(self, names: list[str], below: float | None) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self._path)) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                if below is not None:
                    batch = batch.filter(pc.less(batch.column("amount"), below))
                yield batch.select(names)


class ArrowFlightClient(FieldClient):
    """Opens every batch."""

    CANNOT: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("count", "get", "get_concurrently", "write", "write_concurrently", "top_n", "change"), _NO_TABLE
    )

    def open(self) -> None:
        self.client = self.stack.enter_context(flight.connect(self.address))

    def load(self) -> Timing:
        writer, acknowledged = self.client.do_put(flight.FlightDescriptor.for_path("t4"), t4.SCHEMA)
        timing = self.load_batches(t4.batches(self.rows, LOAD_ROWS), writer.write_batch)
        started = time.perf_counter()
        writer.done_writing()
        acknowledged.read()  # Returns when the server has synced the file.
        writer.close()
        return Timing(self.rows, timing.seconds + time.perf_counter() - started)

    def scan(self) -> Timing:
        return self._read().check_rows(self.rows)

    def project(self) -> Timing:
        return self._read(columns=PROJECTED).check_rows(self.rows)

    def select(self) -> Timing:
        found = self._read(below=BELOW).check_rows(self.expected_selected())
        return Timing(self.rows, found.seconds)

    def call_nothing(self, calls: int) -> Timing:
        return time_calls(range(calls), lambda _: list(self.client.do_action(flight.Action("nothing", b""))))

    def _read(self, *, columns: tuple[str, ...] = (), below: float | None = None) -> Timing:
        ticket = json.dumps({"columns": columns, "below": below}).encode()
        started, rows = time.perf_counter(), 0
        for batch in self.client.do_get(flight.Ticket(ticket)).to_reader():
            rows += batch.num_rows
        return Timing(rows, time.perf_counter() - started)
