"""A process that has imported what Spark's Python workers import, forked wherever Spark starts Python.

Spark gives a Python that it starts for a stream 10 seconds to connect, which is a constant. Importing everything takes
half a second of a core, and on a busy machine more than those 10 seconds. `fork_worker` asks for the forks.

Run as `python -m tests.spark.worker_zygote SOCKET`. It ends when its standard input does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
from typing import Any

import pyspark

import spark_bridge
from tests.support.zygote import MAX_REQUEST_BYTES

_MODULES = (
    "aio_client.sync",
    "anyio._backends._asyncio",
    "numpy.ma",
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.connect.conversion",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
)


def main(path: str) -> None:
    """Forks a process for every request."""
    bridge = [module.name for module in pkgutil.iter_modules(spark_bridge.__path__, "spark_bridge.")]
    for module in [*_MODULES, *bridge]:
        try:
            importlib.import_module(module)
        except ImportError:
            # PySpark 4.0 and 4.1 lack some of them, and the bridge does without.
            if pyspark.__version__ >= "4.2":
                raise
    # Python warns where a module that it runs has been imported.
    del sys.modules["pyspark.sql.streaming.python_streaming_source_runner"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)  # noqa: T201
        request = _next_child(listener)
    if request is not None:
        _run(request)


def _next_child(listener: socket.socket) -> dict[str, Any] | None:
    """Returns in each child with what it is to run, and None in the zygote when the tests are over."""
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in ready:
            return None
        asking, _ = listener.accept()
        message, streams, _, _ = socket.recv_fds(asking, MAX_REQUEST_BYTES, 3)
        child = os.fork()
        if child == 0:
            # Never closed: its end shows the client that the process has ended.
            asking.detach()
            break
        asking.send(str(child).encode())
        asking.close()
        for stream in streams:
            os.close(stream)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    request: dict[str, Any] = json.loads(message)
    return request


def _run(request: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
