"""Features that need a missing package raise an error that says how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aio_client import ScanSpec, UsageError, connect
from aio_client._input.optional import import_optional
from tests.unit.client.misbehaving import KeepsItsContract, serving

WITHOUT_PANDAS = """
import sys

class PandasIsMissing:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ImportError(name)

sys.meta_path.insert(0, PandasIsMissing())
import pyarrow as pa
from aio_client import UsageError
from aio_client._input.other_rows import to_pylist
whole, odd = (pa.table({"at": pa.array([n], pa.timestamp("ns"))}) for n in (2000, 2001))
print(to_pylist(whole)[0]["at"].microsecond)
try:
    to_pylist(odd)
except UsageError as error:
    print(error)
"""


def test_a_package_that_is_there_is_imported() -> None:
    assert import_optional("polars").__name__ == "polars"


@pytest.mark.asyncio
@pytest.mark.parametrize("package", ["pandas", "polars"])
async def test_a_package_that_is_missing_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    async with serving(server := KeepsItsContract()) as url, connect(url) as client:
        scan = client.scan(ScanSpec("game.scores"))
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UsageError, match=f"needs {package}, which is not installed: pip install {package}"):
            await getattr(scan, f"to_{package}")()
        assert server.sent == 0


def test_nanoseconds_without_pandas_are_refused_rather_than_cut() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, timeout=60, check=True
    )
    whole, odd = done.stdout.splitlines()
    assert whole == "2"
    assert "pip install pandas" in odd
