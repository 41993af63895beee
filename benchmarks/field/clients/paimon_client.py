"""pypaimon over local files, in an interpreter of its own, since it needs an older pyarrow than ScanKV."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import pyarrow as pa

from benchmarks import t4
from benchmarks.field.clients.field_client import BELOW, LOAD_ROWS, PROJECTED, FieldClient
from benchmarks.measure import Timing

if TYPE_CHECKING:
    from collections.abc import Mapping

PYTHON: Final = "SCANKV_BENCH_PAIMON_PYTHON"
"""The environment variable for the interpreter with pypaimon. Default: that of the harness."""

_SCRIPT: Final = Path(__file__).with_name("paimon_process.py")
_MOST_GETS: Final = 50
_COMMITS: Final = "every commit writes files, so rows are not written one by one"


def paimon_python() -> str:
    """Returns the interpreter that has pypaimon, if any has."""
    return os.environ.get(PYTHON, sys.executable)


class PaimonClient(FieldClient):
    """Counts the work of the process that it starts as its own."""

    CANNOT: ClassVar[Mapping[str, str]] = {
        "count": "has no count",
        "call_nothing": "has no server",
        "get_concurrently": "has no asynchronous client",
        "write": _COMMITS,
        "write_concurrently": _COMMITS,
        "top_n": "has no order by",
        "change": _COMMITS,
    }

    def open(self) -> None:
        directory = Path(self.address)
        self.file = directory / "rows.arrow"
        self.process = self.stack.enter_context(
            subprocess.Popen(
                [paimon_python(), str(_SCRIPT), str(directory / "warehouse"), str(self.buckets)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        with pa.OSFile(str(self.file), "wb") as file, pa.ipc.new_file(file, t4.SCHEMA) as writer:
            for batch in t4.batches(self.rows, LOAD_ROWS):
                writer.write_batch(batch)

    def load(self) -> Timing:
        return self._ask("load", str(self.file)).check_rows(self.rows)

    def scan(self) -> Timing:
        return self._ask("read", None, None).check_rows(self.rows)

    def project(self) -> Timing:
        return self._ask("read", PROJECTED, None).check_rows(self.rows)

    def select(self) -> Timing:
        found = self._ask("read", None, BELOW).check_rows(self.expected_selected())
        return Timing(self.rows, found.seconds)

    def get(self, calls: int, seed: int) -> Timing:
        keys = self.ids(min(calls, _MOST_GETS), seed)
        return self._ask("get", keys).check_rows(len(keys))

    def _ask(self, name: str, *arguments: object) -> Timing:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the process of pypaimon failed; see its traceback above")
        return Timing(*json.loads(answer))
