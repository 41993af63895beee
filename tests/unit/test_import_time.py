"""`import scankv` and short commands take little time, and import nothing large that they do not need.

Times are of the processor, and compared with what pyarrow and grpc alone take right before, so that neither a slow
machine nor a busy one matters. On a machine where these two take 0.2 s, 0.75 of it is 150 ms.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

HEAVY = {"pandas", "polars", "duckdb", "pyspark", "sqlglot", "matplotlib", "streamlit", "rocksdict"}
FOR_FEW_COMMANDS = {"pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "rich.progress"}
ALONE = "import pyarrow, grpc"
IMPORT = "from scankv import connect, col"
TABLES = "import sys; sys.argv[1:] = ['tables']; from scankv.cli import main; main()"
# The first run may have to write the bytecode, and in others a core may be shared for part of the time.
MOST_ROUNDS = 20
# In addition to those of pyarrow and grpc, and without the standard library, which differs between versions of Python.
# They are 261 and 454.
MOST_MODULES = {IMPORT: 262, TABLES: 455}


def python(code: str, url: str = "") -> str:
    """Returns the output of a new interpreter, which keeps its bytecode, as an installed package does."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "SCANKV_URL": url}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True, timeout=120
    ).stdout


def processor_seconds(code: str, url: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    python(code, url)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imported_by(code: str, url: str = "") -> set[str]:
    """Returns the modules that are loaded when the interpreter ends."""
    told = "import atexit, sys; atexit.register(lambda: print('\\n', *sys.modules))"
    return set(python(f"{told}\n{code}", url).splitlines()[-1].split())


@pytest.mark.alone
@pytest.mark.timeout(300)  # up to 60 interpreters, on a busy machine
def test_importing_and_listing_tables_take_little_more_than_arrow_and_grpc(server: ServerProcess) -> None:
    # A server of its own: that of other tests has hundreds of tables, and listing them takes longer than all imports.
    rounds = []
    for _ in range(MOST_ROUNDS):
        # From one round, so that other load on the machine affects all three. The least of each over all rounds would
        # favor the shortest run.
        alone, imported, listed = (processor_seconds(code, server.url) for code in (ALONE, IMPORT, TABLES))
        rounds.append((alone, imported, listed))
        if imported - alone <= 0.75 * alone and listed - imported <= 1.5 * alone:
            return
    raise AssertionError(rounds)


def test_importing_and_listing_tables_import_few_modules(shared_server: ServerProcess) -> None:
    alone = imported_by(ALONE)
    for code, most in MOST_MODULES.items():
        added = imported_by(code, shared_server.url) - alone
        packages = {module for module in added if module.partition(".")[0] not in sys.stdlib_module_names}
        assert len(packages) <= most, code


def test_nothing_large_is_imported_before_it_is_used() -> None:
    assert imported_by("import scankv") & {"aio_client", "pyarrow", "grpc"} == set()
    assert imported_by("import scankv; scankv.connect; import scankv.sync") & (HEAVY | FOR_FEW_COMMANDS) == set()
    assert imported_by("import scankv.cli.app") & {"aio_client", "pyarrow", "grpc"} == set()
    all_commands = "import typer; from scankv.cli.app import app; list(typer.main.get_command(app).commands.values())"
    assert imported_by(all_commands) & (HEAVY | FOR_FEW_COMMANDS) == set()


def test_no_module_has_arrow_import_pandas() -> None:
    """Arrow's first conversion imports pandas, so no module may convert anything when it is imported.

    The server has modules that do, and keeps pandas out of its process. pyiceberg and pyarrow.dataset do, too: they are
    imported only to publish an Iceberg table, and to make a dataset.
    """
    code = (
        "import importlib, pkgutil, aio_client, scankv, scankv.model\n"
        "for package in (aio_client, scankv, scankv.model):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not module.name.endswith(('__main__', '.arrow_dataset')) and '.iceberg.' not in module.name:\n"
        "            importlib.import_module(module.name)\n"
    )
    assert imported_by(code) & {"pandas", "polars", "duckdb"} == set()
