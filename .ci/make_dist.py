"""Builds the wheel, the sdist and the SBOM of a release in `dist/`, and checks what an index and users need.

The sdist must build the same wheel, byte for byte, and have the changelog and what is needed to run a server. Twine
must accept the metadata and the README. Both archives must install into a new environment in which the client and the
command line start. The SBOM has every package that a server needs, in the version that is installed now. `make check`
runs `check_wheel.py`, which checks the content of the wheel.
"""

from __future__ import annotations

import email
import json
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIST = ROOT / "dist"
SERVER = ("server", "oidc", "http")
"""The extras whose packages are in the SBOM."""
LONGEST_SUMMARY = 512  # of a package index
PACKAGES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["packages"]
IN_SDIST = ("CHANGELOG.md", "Containerfile", "LICENSE", "README.md", "pyproject.toml", "packaging/scankv.service")
"""What an sdist has beside the packages."""
NEVER_IN_SDIST = ("__pycache__", ".git/", ".venv", ".pem", ".key", "tests/", "benchmarks/")
USE = "import scankv, scankv.sync; assert scankv.__version__ == {version!r}; scankv.connect, scankv.sync.connect"


def main() -> None:
    """Builds and checks the archives. Exits with code 1 and the reason if a check fails."""
    for old in DIST.glob("scankv-*"):
        old.unlink()
    wheel, sdist = build("wheel", ROOT, DIST), build("sdist", ROOT, DIST)
    with tempfile.TemporaryDirectory(prefix="scankv-dist-") as name:
        directory = Path(name)
        check_same_wheel(wheel, sdist, directory)
        check_sdist(sdist)
        check_metadata(wheel)
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        for archive in (wheel, sdist):
            check_install(archive, directory / archive.suffix)
        sbom = make_sbom(wheel, directory / "server")
    if "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text():
        print("not a release yet: CHANGELOG.md has unreleased changes")
    for archive in (wheel, sdist, sbom):
        print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size:,} bytes")


def build(target: str, source: Path, directory: Path) -> Path:
    """Builds the wheel or the sdist of a source tree, and returns its path."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", directory, cwd=source)
    (built,) = directory.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def check_same_wheel(wheel: Path, sdist: Path, directory: Path) -> None:
    """Builds the wheel again from the sdist, and compares the two."""
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    again = build("wheel", directory / sdist.name.removesuffix(".tar.gz"), directory)
    if again.read_bytes() != wheel.read_bytes():
        found = differences(wheel, again) or "the order or modes of the files"
        sys.exit(f"the wheel from the sdist differs from the wheel from the checkout in {found}")


def differences(one: Path, other: Path) -> list[str]:
    """Returns the names of the files in which two wheels differ."""
    with zipfile.ZipFile(one) as left, zipfile.ZipFile(other) as right:
        sums = [{info.filename: info.CRC for info in archive.infolist()} for archive in (left, right)]
    return sorted(name for name in sums[0].keys() | sums[1].keys() if sums[0].get(name) != sums[1].get(name))


def check_sdist(sdist: Path) -> None:
    """Checks that the sdist has everything to build, install and run the server, and nothing private."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = [*IN_SDIST, *(f"{package}/__init__.py" for package in PACKAGES)]
    missing = [name for name in needed if name not in names]
    extra = sorted(name for name in names if any(part in name for part in NEVER_IN_SDIST))
    if missing or extra:
        sys.exit(f"the sdist lacks {missing} and must not have {extra}")


def check_metadata(wheel: Path) -> None:
    """Compares the metadata of the wheel with `pyproject.toml`."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
        scripts = archive.read(path.replace("METADATA", "entry_points.txt")).decode()
        licenses = [name for name in archive.namelist() if ".dist-info/licenses/" in name]
    expected = {
        "Name": [PROJECT["name"]],
        "Version": [PROJECT["version"]],
        "License-Expression": [PROJECT["license"]],
        "License-File": PROJECT["license-files"],
        "Requires-Python": [PROJECT["requires-python"]],
        "Classifier": PROJECT["classifiers"],
        "Provides-Extra": list(PROJECT["optional-dependencies"]),
        "Description-Content-Type": ["text/markdown"],
    }
    wrong = {
        name: values_of(metadata, name)
        for name, values in expected.items()
        if values_of(metadata, name) != sorted(values)
    }
    if wrong:
        sys.exit(f"the metadata of the wheel differs from pyproject.toml: {wrong}")
    # A package index refuses requirements with an address.
    if direct := [each for each in values_of(metadata, "Requires-Dist") if "@" in each]:
        sys.exit(f"the wheel requires packages by their addresses: {direct}")
    if len(metadata["Summary"]) > LONGEST_SUMMARY:
        sys.exit(f"the summary has {len(metadata['Summary'])} characters; the limit is {LONGEST_SUMMARY}")
    if not licenses:
        sys.exit("the wheel lacks the license")
    if any(f"{name} = {target}" not in scripts for name, target in PROJECT["scripts"].items()):
        sys.exit(f"the wheel lacks a console script: {scripts}")


def values_of(metadata: Message, name: str) -> list[str]:
    """Returns the values of one field, sorted."""
    return sorted(metadata.get_all(name, []))


def check_install(archive: Path, directory: Path) -> None:
    """Installs an archive into a new environment, and starts the client and the command line."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", archive)
    run(python, "-I", "-c", USE.format(version=PROJECT["version"]), cwd=directory)
    run(python.with_name("scankv"), "--help", cwd=directory)
    print(f"{archive.name} installs and starts")


def make_sbom(wheel: Path, directory: Path) -> Path:
    """Installs the wheel with what a server needs, writes that as CycloneDX beside the wheel, and returns the path."""
    venv.create(directory, symlinks=True)
    python, sbom = directory / "bin" / "python", DIST / f"{PROJECT['name']}-{PROJECT['version']}.cdx.json"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", f"{wheel}[{','.join(SERVER)}]")
    arguments = ("--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--output-file", sbom)
    run(sys.executable, "-m", "cyclonedx_py", "environment", *arguments, python)
    check_sbom(json.loads(sbom.read_text()))
    return sbom


def check_sbom(sbom: dict[str, Any]) -> None:
    """Checks that an SBOM is of this version, and has each direct dependency of a server with its version."""
    main = sbom["metadata"]["component"]
    if (main["name"], main["version"]) != (PROJECT["name"], PROJECT["version"]):
        sys.exit(f"the SBOM is of {main['name']} {main['version']}")
    optional = [each for extra in SERVER for each in PROJECT["optional-dependencies"][extra]]
    needed = {canonicalize_name(Requirement(each).name) for each in (*PROJECT["dependencies"], *optional)}
    found = {canonicalize_name(each["name"]) for each in sbom["components"] if each.get("version") and "purl" in each}
    if missing := sorted(needed - found - {PROJECT["name"]}):
        sys.exit(f"the SBOM lacks {missing}")


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Runs a command. If it fails, exits with its output."""
    words = [str(word) for word in command]
    completed = subprocess.run(
        words, cwd=cwd, check=False, timeout=600, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if completed.returncode:
        sys.exit(f"{completed.stdout}\nfailed: {' '.join(words[:6])} ...")


if __name__ == "__main__":
    main()
