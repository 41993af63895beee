"""`examples/flights.ipynb` runs from its first cell to its last, and is committed without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aio_client.sync import connect
from examples.leaderboard.replay import Replay

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "examples" / "flights.ipynb"


def code_cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


# What a kernel does, without a kernel: all cells share one namespace, `show` draws a plot, and warnings are errors.
RUN = """
import json, sys
import matplotlib.pyplot as plt
shown = []
plt.show = lambda: (shown.append([axes.has_data() for axes in plt.gcf().axes]), plt.close("all"))
names = {}
for number, source in enumerate(json.load(sys.stdin)):
    exec(compile(source, f"cell {number}", "exec"), names)
print(json.dumps({"shown": shown, "total": names["total"], "destinations": names["delays"].height}))
"""


@pytest.mark.soak
def test_every_cell_runs_and_draws(server: ServerProcess) -> None:
    with connect(server.url) as client:
        Replay(client, "2013-01-20")
        late = client.table("demo.flights").count("dep_delay > 60 AND origin = 'JFK'")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN],
        input=json.dumps(["".join(cell["source"]) for cell in code_cells()]),
        env={**os.environ, "SCANKV_URL": server.url, "MPLBACKEND": "Agg"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == {"shown": [[True]] * 3, "total": late, "destinations": 8}


def test_the_notebook_is_kept_without_outputs() -> None:
    assert [cell for cell in code_cells() if cell["outputs"] or cell["execution_count"] is not None] == []
