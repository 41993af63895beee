"""ScanKV is installed from a checkout or a wheel, everywhere in the same way, and never by its name.

No package index has the name, so a command with it would install the package of whoever takes it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from scankv.model.installing import command_to_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
# An installer and ScanKV by its name, in one command. The name is not part of a path or of another name. Indexes ignore
# upper and lower case.
BY_NAME = re.compile(
    r"(?:\b(?:pip3?|uv|pipx|poetry|pdm|conda|mamba)\b[^`;&|\n]{0,40}?\b(?:install|add|download|wheel|upgrade)\b|\buvx\b"
    r"|\bpipx run\b)[^`;&|\n]{0,100}?(?<![\w./$-])(?<!of )scankv(?![\w-]|\.\w|:?/\w|://)",
    re.IGNORECASE,
)
# The name with a version, as in requirements.
WITH_VERSION = re.compile(r"(?<![\w./$-])scankv\s*[=<>~!]=\s*\d", re.IGNORECASE)
INSTALLER = re.compile(r"\b(?:pip3?|uvx?|pipx|poetry|pdm|conda|mamba)\b")
# The name with extras, as in requirements. Types of a generic class have capitals.
WITH_EXTRAS = re.compile(r"(?<![\w./$-])scankv\[[a-z]")
CONTINUED = re.compile(r"\\\n\s*")
CODE = re.compile(r"(?<!`)`[^`]{1,200}`(?!`)")
# Extras of the distribution that name others of it: pip takes them from what it installs, and asks no index.
OF_THE_PROJECT = "pyproject.toml"


def find_installs_by_name(text: str) -> list[str]:
    """Returns the commands of a text that install ScanKV by its name. Notebooks and code escape quotes."""
    if not any(pattern.search(text) for pattern in (INSTALLER, WITH_EXTRAS, WITH_VERSION)):
        return []
    commands = CODE.sub(lambda found: " ".join(found[0].split()), CONTINUED.sub(" ", text)).replace("\\", "")
    return [found[0] for pattern in (BY_NAME, WITH_EXTRAS, WITH_VERSION) for found in pattern.finditer(commands)]


@cache
def read_texts() -> dict[str, str]:
    """Returns all text files of the repository but the tests, which contain what they look for."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", ":!tests"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    contents = {path: (ROOT / path).read_bytes() for path in listed.stdout.splitlines() if (ROOT / path).is_file()}
    return {path: content.decode() for path, content in contents.items() if b"\0" not in content}


def test_no_text_tells_to_install_scankv_by_its_name() -> None:
    texts = read_texts()
    assert {"README.md", "Containerfile", "CHANGELOG.md", "packaging/scankv.service", "scankv/cli/outcome.py"} < {
        *texts
    }
    found = {path: find_installs_by_name(text) for path, text in texts.items() if path != OF_THE_PROJECT}
    assert {path: commands for path, commands in found.items() if commands} == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install scankv",
        'run: pip install "scankv[server]"',
        "'pip install --upgrade \\\"scankv[{extra}]\\\"'",
        "python -m pip --quiet install 'scankv>=0.1'",
        'need `pip\n  install "scankv[sketches]"` at the server',
        'env/bin/pip install scankv "pandas<4" venv-pack',
        "pip install pandas scankv",
        "pip install scankv pandas",
        "pip install ScanKV",
        "pip install \\\n    pandas scankv==0.1.0",
        "uv add scankv",
        "uv tool install scankv",
        "pipx install scankv",
        "uvx scankv serve",
        "pip download scankv",
        "RUN pip install scankv",
        "the extra `scankv[otel]`",
        "Run pip install scankv.",
        "pip install scankv/",
        "requirements: scankv>=0.1",
        "scankv == 0.1.0",
    ],
)
def test_an_install_by_name_is_found(text: str) -> None:
    assert find_installs_by_name(text)


@pytest.mark.parametrize(
    "text",
    [
        'pip install ".[server]"',
        'pip install "./$(ls dist/scankv-*.whl)[server]"',
        "/opt/scankv/bin/pip install .",
        "pip install pandas; scankv serve",
        "pip install .\nscankv serve",
        "pip install ./scankv/dist/it.whl",
        "`pip install pandas` reads scankv.toml and scankv/model",
        "uv run scankv serve --data ./data",
        "`pip install polars duckdb` and `scankv publish`",
    ],
)
def test_a_path_or_a_command_is_no_install_by_name(text: str) -> None:
    assert find_installs_by_name(text) == []


def test_errors_name_the_command_of_the_pages() -> None:
    assert 'pip install ".[server]"' in command_to_install("server")
    for path in ("README.md", "docs/install.md", "docs/quickstart.md", "docs/operations/running.md"):
        assert 'pip install ".[server]"' in (ROOT / path).read_text(), path


def test_every_extra_is_on_the_page() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE) == sorted(EXTRAS, key=re.findall(r"`(.+?)`", page).index)


def test_every_extra_that_is_named_exists() -> None:
    named = {
        (path, extra)
        for path, text in read_texts().items()
        for extras in re.findall(r'pip install (?:-e |--editable )?\\?"?\.\[([a-z,-]+)\]', text)
        for extra in extras.split(",")
    }
    assert len(named) > 10
    assert sorted((path, extra) for path, extra in named if extra not in EXTRAS) == []


@pytest.mark.parametrize(("has_all", "venv"), [(False, ".venv-docs"), (True, ".venv")], ids=["new checkout", "venv"])
def test_make_docs_makes_no_environment_for_tests(tmp_path: Path, has_all: bool, venv: str) -> None:
    for name in ("Makefile", "pyproject.toml", ".ci/make-venv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    if has_all:
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv" / ".installed").touch()
    command = ["make", "--dry-run", "docs"]
    commands = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in commands if "make-venv" in line] == ([] if has_all else [".ci/make-venv docs"])
    assert f"{venv}/bin/sphinx-build" in "\n".join(commands)


def test_the_documentation_needs_no_package_of_the_tests() -> None:
    groups = PROJECT["dependency-groups"]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in groups["docs"]}  # type: ignore[index]
    assert not names & {"pyspark", "pytest", "mypy", "hypothesis", "streamlit", "pyright"}
    script = (ROOT / ".ci" / "make-venv").read_text()
    assert """--group docs --editable '.[server]'\n""" in script
