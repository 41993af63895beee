"""The versions that pyproject.toml allows, `make versions` tests and docs/operations/upgrades.md lists are the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHON = "Programming Language :: Python :: 3."


def allowed(name: str, requirements: list[str], versions: list[str]) -> list[str]:
    """Returns the versions among `versions` that the requirement of a package allows."""
    (found,) = [each for each in map(Requirement, requirements) if each.name == name]
    return [version for version in versions if found.specifier.contains(f"{version}.999")]


def versions_in(variable: str) -> list[str]:
    """Returns the versions in a variable of `.ci/test-versions`."""
    script = (ROOT / ".ci/test-versions").read_text()
    found = re.search(rf"^{variable}=(?:\$\{{{variable}:-)?\(?([\d. ]+)[)}}]$", script, re.MULTILINE)
    assert found is not None
    return found[1].split()


def documented(what: str) -> str:
    """Returns the versions of a row of the table in the documentation."""
    page = (ROOT / "docs/operations/upgrades.md").read_text()
    (row,) = re.findall(rf"^\| {re.escape(what)} \| ([^|]+) \|", page, re.MULTILINE)
    return str(row)


def test_the_versions_of_python_are_tested_and_documented() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    declared = [f"3.{each.removeprefix(PYTHON)}" for each in classifiers if each.startswith(PYTHON)]
    assert PROJECT["project"]["requires-python"] == f">={declared[0]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == declared[0]
    assert [declared[0], *versions_in("PYTHONS")] == declared
    assert documented("Python") == f"{declared[0]} to {declared[-1]}"


def test_the_versions_of_pyarrow_are_tested_and_documented() -> None:
    versions = [str(major) for major in range(15, 100)]
    client = allowed("pyarrow", PROJECT["project"]["dependencies"], versions)
    assert [*versions_in("PYARROWS"), client[-1]] == client
    assert documented("pyarrow, client") == f"{client[0]} to {client[-1]}"
    for extra in ("server", "spark"):
        assert allowed("pyarrow", PROJECT["project"]["optional-dependencies"][extra], versions) == client[-1:]
    assert documented("pyarrow, server and Spark") == client[-1]


@pytest.mark.breadth
def test_the_versions_of_pyspark_are_tested_and_documented() -> None:
    versions = [f"{major}.{minor}" for major in (3, 4, 5) for minor in range(20)]
    spark = allowed("pyspark", PROJECT["project"]["optional-dependencies"]["spark"], versions)
    (newest,) = allowed("pyspark", PROJECT["dependency-groups"]["dev"], versions)
    assert [*versions_in("PYSPARKS"), newest] == spark
    assert documented("PySpark") == f"{spark[0]} to {spark[-1]}"
