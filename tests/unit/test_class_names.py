"""A class name means one thing in the repository."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Everything that is written by hand or generated here, but for the generated protobuf modules: a service and its
# base class in `scankv.v1` have one name by the rules of gRPC.
FOLDERS = (
    "scankv",
    "streaming_server",
    "aio_client",
    "spark_bridge",
    "pyspark_scankv",
    "benchmarks",
    "examples",
    "tests",
)
WITHOUT = "scankv/v1/"
# Parsing all files would take seconds.
CLASS_NAME = re.compile(r"^[ \t]*class[ \t]+_*(\w+)", re.MULTILINE)

_BLOCKING = "the blocking client has the classes of the asynchronous one"
_FORKED = "tests start the shipped one from a forked process"

# A class name, the two files that may define it, and why.
ALLOWED = {
    ("Client", "aio_client/_client/client.py", "aio_client/_sync/generated.py"): _BLOCKING,
    ("ColumnLock", "aio_client/_sync/generated.py", "aio_client/_write/column_locks.py"): _BLOCKING,
    ("Scan", "aio_client/_scan/scan.py", "aio_client/_sync/generated.py"): _BLOCKING,
    ("ScanStream", "aio_client/_scan/stream.py", "aio_client/_sync/stream.py"): _BLOCKING,
    ("ServerProcess", "streaming_server/testing.py", "tests/support/server_process.py"): _FORKED,
    ("Snapshot", "aio_client/_scan/snapshot.py", "aio_client/_sync/generated.py"): _BLOCKING,
    ("SnapshotGroup", "aio_client/_scan/snapshot_group.py", "aio_client/_sync/generated.py"): _BLOCKING,
    ("Table", "aio_client/_client/table.py", "aio_client/_sync/generated.py"): _BLOCKING,
    ("TopNWatch", "aio_client/_queries/watch.py", "aio_client/_sync/watch.py"): _BLOCKING,
    ("SqlQuery", "aio_client/_sql/query.py", "aio_client/_sync/generated.py"): _BLOCKING,
    ("Transaction", "aio_client/_client/transaction.py", "aio_client/_sync/generated.py"): _BLOCKING,
    ("TransactionPart", "aio_client/_client/transaction_part.py", "aio_client/_sync/generated.py"): _BLOCKING,
    ("Writer", "aio_client/_sync/generated.py", "aio_client/_write/writer.py"): _BLOCKING,
}


def repeated_classes(root: Path) -> set[tuple[str, ...]]:
    """Each class name that several modules below `root` define, followed by their paths in order.

    A leading underscore is ignored. Classes within classes and functions count, too.
    """
    files: defaultdict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.py"):
            relative = path.relative_to(root).as_posix()
            if not relative.startswith(WITHOUT):
                for name in CLASS_NAME.findall(path.read_text()):
                    files[name].add(relative)
    return {(name, *sorted(paths)) for name, paths in files.items() if len(paths) > 1}


def test_a_class_name_means_one_thing() -> None:
    # Equality, so that a pair that no longer exists leaves the list.
    assert repeated_classes(ROOT) == set(ALLOWED)


def test_a_repeated_name_is_found(tmp_path: Path) -> None:
    sources = {
        "scankv/model/plan.py": "class ReadPlan: ...\nclass Other: ...",
        "scankv/v1/scan_pb2_grpc.py": "class ReadPlan: ...",
        "benchmarks/plan.py": "def plan():\n    class _ReadPlan: ...",
        "tests/unit/test_plan.py": "class ReadPlans: ...",
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert repeated_classes(tmp_path) == {("ReadPlan", "benchmarks/plan.py", "scankv/model/plan.py")}
