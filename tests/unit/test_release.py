"""The changelog, the metadata, the fixtures and the documentation name the same versions."""

from __future__ import annotations

import re
import runpy
import tarfile
import tomllib
from datetime import date
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import scankv

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEADINGS = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
RELEASE = re.compile(r"(\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)")
VERSIONING = (ROOT / "docs/operations/versioning.md").read_text()


def releases() -> list[tuple[Version, date]]:
    """Returns the versions and dates of the changelog, the newest first."""
    headings = HEADINGS[1:] if HEADINGS[0] == "Unreleased" else HEADINGS
    found = [RELEASE.fullmatch(heading) for heading in headings]
    assert None not in found, headings
    return [(Version(each[1]), date.fromisoformat(each[2])) for each in found if each]


def test_the_version_is_that_of_the_newest_release_in_the_changelog() -> None:
    assert PROJECT["version"] == str(releases()[0][0])
    assert scankv.__version__ == metadata.version("scankv") == PROJECT["version"]


def test_releases_in_the_changelog_are_in_order() -> None:
    for (version, day), (earlier, before) in pairwise(releases()):
        assert version > earlier
        assert day >= before


def test_each_release_is_kept_for_the_tests_of_later_versions() -> None:
    for version, _ in releases():
        kept = {path.name for path in (ROOT / "tests/fixtures" / str(version)).iterdir()}
        assert kept == {"data.tar.gz", f"scankv-{version}-py3-none-any.whl", f"scankv-{version}.tar.gz"}


def test_the_maturity_in_the_metadata_is_that_of_the_version() -> None:
    (status,) = (each for each in PROJECT["classifiers"] if each.startswith("Development Status"))
    assert ("Alpha" in status or "Beta" in status) == (Version(PROJECT["version"]).major == 0)


def test_requirements_have_bounds_and_no_addresses() -> None:
    extras = PROJECT["optional-dependencies"].values()
    for text in [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]:
        requirement = Requirement(text)
        assert requirement.url is None, text
        operators = {bound.operator for bound in requirement.specifier}
        assert requirement.name == "scankv" or operators == {">=", "<"}, text


def make_sdist(path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"scankv-1/{name}"))
    return path


def test_an_sdist_that_lacks_a_file_or_has_a_private_one_is_found(tmp_path: Path) -> None:
    make_dist = runpy.run_path(str(ROOT / ".ci/make_dist.py"))
    check, path = make_dist["check_sdist"], tmp_path / "x.tar.gz"
    names = [*make_dist["IN_SDIST"], *(f"{package}/__init__.py" for package in make_dist["PACKAGES"])]
    check(make_sdist(path, names))
    for name in names:
        with pytest.raises(SystemExit, match=re.escape(name)):
            check(make_sdist(path, [each for each in names if each != name]))
    for private in ("scankv/server.key", "scankv/__pycache__/x.pyc"):
        with pytest.raises(SystemExit, match=re.escape(private)):
            check(make_sdist(path, [*names, private]))


def test_addresses_in_the_metadata_are_encrypted() -> None:
    assert all(url.startswith("https://") for url in PROJECT.get("urls", {}).values())


def test_the_documentation_installs_the_current_wheel() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        named = set(re.findall(r"scankv-([\d.]+)-py3", page.read_text()))
        assert named <= {PROJECT["version"]}, page


def test_the_policy_names_every_public_module_and_what_is_deprecated() -> None:
    for name in ("scankv", "scankv.sync", "scankv.mirror", "scankv.spark", "scankv.testing"):
        assert f"`{name}`" in VERSIONING
    sources = [path for package in ("aio_client", "scankv", "spark_bridge") for path in (ROOT / package).rglob("*.py")]
    is_deprecated = any("DeprecationWarning" in path.read_text() for path in sources)
    listed = any(re.match(r"Deprecated:?$", line) for line in (ROOT / "CHANGELOG.md").read_text().splitlines())
    assert is_deprecated == listed
    assert ("Nothing is deprecated at present." in VERSIONING) == (not is_deprecated)


def test_an_sbom_without_a_package_or_of_another_version_is_refused() -> None:
    check = runpy.run_path(str(ROOT / ".ci/make_dist.py"))["check_sbom"]
    extras = [each for extra in ("server", "oidc", "http") for each in PROJECT["optional-dependencies"][extra]]
    names = {Requirement(each).name for each in (*PROJECT["dependencies"], *extras)} - {"scankv"}
    components = [{"name": name.upper(), "version": "1", "purl": f"pkg:pypi/{name}@1"} for name in sorted(names)]
    main = {"name": "scankv", "version": PROJECT["version"]}
    check({"metadata": {"component": main}, "components": components})
    with pytest.raises(SystemExit, match=r"the SBOM is of scankv 0\.0\.1"):
        check({"metadata": {"component": main | {"version": "0.0.1"}}, "components": components})
    for missing in components:
        with pytest.raises(SystemExit, match=r"the SBOM lacks \['"):
            check({"metadata": {"component": main}, "components": [each for each in components if each != missing]})
