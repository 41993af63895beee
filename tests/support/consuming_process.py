"""A consumer in its own process, which a test may kill at any moment.

Run as `python -m tests.support.consuming_process URL TABLE CONSUMER_ID`. It prints each batch on a line, as JSON, then
waits for a line: `commit` commits all batches so far and prints an answer; any other line requests the next batch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

from aio_client import sync
from tests.support.forked import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK_ROWS = 20


class ConsumingProcess:
    """Controls the process. Leaving `with` kills it."""

    def __init__(self, url: str, table: str, consumer_id: str) -> None:
        self._process = ForkedProcess[str](
            [sys.executable, "-m", __name__, url, table, consumer_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def next_batch(self) -> list[dict[str, Any]]:
        """Returns the next batch that the consumer has received."""
        return list(self._answer())

    def go_on(self) -> None:
        """Lets the consumer request the next batch without a commit."""
        self._say("go on")

    def begin_commit(self) -> None:
        """Starts a commit without waiting for the answer."""
        self._say("commit")

    def commit(self) -> None:
        """Commits, and waits until the consumer reports that the commit is done."""
        self.begin_commit()
        assert self._answer() == "committed"

    def kill(self) -> None:
        """Ends the process with SIGKILL."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the consumer ended with {self._process.wait()}"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def main(arguments: Sequence[str]) -> None:
    """Consumes until it is killed."""
    url, table, consumer_id = arguments
    with sync.connect(url) as client:
        changes = client.table(table).changes(consumer_id=consumer_id).with_chunk(rows=_CHUNK_ROWS)
        with changes.stream() as stream:
            for batch in stream:
                _tell(batch.drop_columns(["_commit_timestamp"]).to_pylist())
                while sys.stdin.readline().strip() == "commit":
                    stream.commit()
                    _tell("committed")


def _tell(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
