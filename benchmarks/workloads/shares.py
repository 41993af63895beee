"""Measures where the time of a scan goes: the stages of a chunk one by one, and the rest of the real stream."""

from __future__ import annotations

import time
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, Self

import google_crc32c
import pyarrow as pa

from benchmarks.bench import Figure, Result, ResultTable
from benchmarks.files import definition, open_rocks
from benchmarks.measure import Spread, progress
from benchmarks.proc import cpu_seconds
from benchmarks.readers.scankv import ClientReader
from benchmarks.server import BenchmarkServer
from benchmarks.workers import Worker
from scankv.model.limits import DEFAULT_CHUNK_ROWS
from scankv.v1.scan_pb2 import ScanChunk, ScanKvResponse
from streaming_server.scan.chunk_source import ScanPosition, View
from streaming_server.scan.framing import frame_chunk
from streaming_server.scan.resume_token import Fingerprint, TokenWriter
from streaming_server.storage.rocks.store_options import scan_options
from streaming_server.storage.rows.key_encoder import KeyEncoder
from streaming_server.storage.rows.row_codec import RowCodec

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Bench

SERVER_STAGES: Final = ("iterate", "decode", "Arrow IPC", "checksum", "resume token", "protobuf")
CLIENT_STAGES: Final = ("protobuf, client", "checksum, client", "Arrow IPC, client")
_RECEIVED: Final = 100
_WALL, _SERVER_CPU, _CLIENT_CPU = "whole stream, wall clock", "processor time, server", "processor time, client"
_REST = "gRPC, event loop, waiting"


class StageClock:
    """Does what server and client do with every chunk, without gRPC, and records the time of each stage."""

    def __init__(self, data: Path) -> None:
        self._store = open_rocks(data)
        codec = RowCodec(definition(data))
        self._decoder = codec.decoder()
        self._row_keys = codec.row_keys(KeyEncoder(codec.definition).codec)
        self._tokens = TokenWriter(Fingerprint.of(table=[data], schema=b"", query=[]), View({0: 0}, 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def read(self) -> dict[str, float]:
        """Returns the mean seconds per chunk of each stage, for all rows."""
        server, message = self._serve()
        return server | self._receive(message)

    def _serve(self) -> tuple[dict[str, float], bytes]:
        """Returns the times of the server's stages over all rows, and the first message.

        The result of a stage stays alive until its next result, as in the server. If it was dropped at once, the
        allocator would return its memory to the system each time, which costs more than the stage.
        """
        seconds, chunks, first = dict.fromkeys(SERVER_STAGES, 0.0), 0, b""
        options = scan_options()  # Kept in a variable, since the iterator only borrows it.
        values = iter(self._store.rows.values(read_opt=options))
        while True:
            marks = [time.perf_counter()]
            part = list(islice(values, DEFAULT_CHUNK_ROWS))
            if not part:
                return _per_chunk(seconds, chunks), first
            marks.append(time.perf_counter())
            batch = self._decoder.decode(pa.array(part, pa.binary()))
            last = part[-1]
            del part
            marks.append(time.perf_counter())
            data = batch.serialize()
            marks.append(time.perf_counter())
            checksum = google_crc32c.extend(0, data)
            marks.append(time.perf_counter())
            token = self._tokens.token(ScanPosition(0, self._row_keys.key_of(last)), None)
            marks.append(time.perf_counter())
            fields = ScanChunk(row_count=batch.num_rows, resume_token=token, rows_scanned=chunks, crc32c=checksum)
            message = frame_chunk(fields, data)
            marks.append(time.perf_counter())
            _add(seconds, marks)
            first = first or message
            chunks += 1

    def _receive(self, message: bytes) -> dict[str, float]:
        """Returns the times of the client's stages, which process one message many times."""
        seconds = dict.fromkeys(CLIENT_STAGES, 0.0)
        for _ in range(_RECEIVED):
            marks = [time.perf_counter()]
            received = ScanKvResponse.FromString(message).chunk.record_batch
            marks.append(time.perf_counter())
            google_crc32c.extend(0, received)
            marks.append(time.perf_counter())
            pa.ipc.read_record_batch(pa.py_buffer(received), self._decoder.schema).validate()
            marks.append(time.perf_counter())
            _add(seconds, marks)
        return _per_chunk(seconds, _RECEIVED)


def _add(seconds: dict[str, float], marks: list[float]) -> None:
    for stage, (start, end) in zip(seconds, pairwise(marks), strict=True):
        seconds[stage] += end - start


def _per_chunk(seconds: dict[str, float], chunks: int) -> dict[str, float]:
    return {stage: total / chunks for stage, total in seconds.items()}


def run(bench: Bench) -> Result:
    """Measures the stages and the real stream in turn."""
    store, found = bench.store, []
    chunks = -(-store.rows // DEFAULT_CHUNK_ROWS)
    with (
        Worker(StageClock, store.copy("stages")) as stages,
        BenchmarkServer(store.data) as server,
        Worker(ClientReader, server.url) as reader,
    ):
        for number in range(-1, bench.runs):
            seconds = stages.call(StageClock.read)
            before = cpu_seconds(server.pid), cpu_seconds(reader.pid)
            wall = reader.call(ClientReader.read).check_rows(store.rows).seconds
            seconds[_WALL] = wall / chunks
            seconds[_SERVER_CPU] = (cpu_seconds(server.pid) - before[0]) / chunks
            seconds[_CLIENT_CPU] = (cpu_seconds(reader.pid) - before[1]) / chunks
            if number >= 0:
                found.append(seconds)
                progress(f"  run {number + 1} of {bench.runs}: {1e6 * seconds[_WALL]:,.0f} us per chunk")
    for seconds in found:
        seconds[_REST] = seconds[_WALL] - sum(seconds[stage] for stage in SERVER_STAGES)
    order = (*SERVER_STAGES, _REST, _WALL, _SERVER_CPU, *CLIENT_STAGES, _CLIENT_CPU)
    spreads = {stage: Spread.of(1e6 * seconds[stage] for seconds in found) for stage in order}
    share = {stage: Spread.of(100 * seconds[stage] / seconds[_WALL] for seconds in found).median for stage in order}
    return Result(
        figures=[
            Figure(
                name="tokens",
                work="checksum and resume token of a chunk",
                against="the wall clock of the chunk in the real stream",
                unit="%",
                spread=Spread.of(
                    100 * (seconds["checksum"] + seconds["resume token"]) / seconds[_WALL] for seconds in found
                ),
                at_most=2,
            )
        ],
        tables=[
            ResultTable(
                f"Where the time of a chunk goes ({DEFAULT_CHUNK_ROWS:,} rows)",
                ("microseconds per chunk", "median", "least", "greatest", "% of the wall clock"),
                [(name, s.median, s.least, s.greatest, share[name]) for name, s in spreads.items()],
            )
        ],
        notes=[
            "Shares: the stages run one after the other in one process, without gRPC. `gRPC, event loop, waiting` is "
            "the time of the real stream minus the server's stages. The client's stages run concurrently in the "
            "client's process. Processor time is that of all threads of a process.",
        ],
    )
