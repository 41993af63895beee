"""The container image and the service of systemd are private, and fit the program that they start.

No container engine runs here, so the instructions are read and compared. `tests/integration/cli/test_packaging.py` runs
what they run.
"""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
import shutil
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from streaming_server.config import NOT_FROM_ENVIRONMENT, ServerConfig
from streaming_server.server import EXIT_FOREIGN_DIRECTORY
from tests.support.packaging_files import ROOT, UNIT, arguments_of, check_command, read_stages, read_unit

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD, FINAL = read_stages()
EXTRAS = runpy.run_path(str(ROOT / ".ci/make_locks.py"))["EXTRAS"]
LOCKED = {"build": PROJECT["build-system"]["requires"]} | {
    name: [
        *PROJECT["project"]["dependencies"],
        *(
            each
            for extra in extras
            for each in PROJECT["project"]["optional-dependencies"][extra]
            if not each.startswith("scankv[")
        ),
    ]
    for name, extras in EXTRAS.items()
}
SETTINGS = {field.name for field in dataclasses.fields(ServerConfig)} - NOT_FROM_ENVIRONMENT


def test_the_image_gets_everything_that_the_wheel_is_built_from() -> None:
    copied = [source for arguments in arguments_of(BUILD, "COPY") for source in arguments.split()[:-1]]
    needed = {*PROJECT["tool"]["hatch"]["build"]["packages"], "pyproject.toml", "README.md", "LICENSE", "packaging"}
    assert set(copied) == needed
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore[0] == "*"
    assert {line.removeprefix("!") for line in ignore if line.startswith("!")} == needed


def test_the_image_installs_only_what_is_locked_by_hash_and_the_wheel_of_these_sources() -> None:
    for command in arguments_of(BUILD, "RUN"):
        if command.startswith("pip install"):
            locked = re.search(r" --require-hashes --only-binary :all: -r (packaging/\S+)$", command)
            assert locked or " --no-deps --no-index dist/" in command, command
            assert locked is None or (ROOT / locked[1]).exists()
        if command.startswith("pip wheel"):
            assert "--no-deps --no-build-isolation" in command


@pytest.mark.parametrize(("name", "needed"), LOCKED.items(), ids=LOCKED)
def test_a_lock_has_what_pyproject_asks_for_with_hashes_and_names_no_host(name: str, needed: list[str]) -> None:
    text = re.sub(r"#.*\n", "", (ROOT / "packaging" / f"requirements-{name}.txt").read_text())
    locked: defaultdict[str, list[Requirement]] = defaultdict(list)
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = re.split(r"\s+--hash=sha256:", line.rstrip())
        assert hashes, line
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in hashes), line
        locked[canonicalize_name(Requirement(requirement).name)].append(Requirement(requirement))
    assert not any(each.url for versions in locked.values() for each in versions)
    assert all(is_pinned(each) for versions in locked.values() for each in versions)
    for asked in map(Requirement, needed):
        versions = locked[canonicalize_name(asked.name)]
        assert versions, f"{asked} is not locked: run make lock"
        for each in versions:
            assert asked.specifier.contains(str(each.specifier)[2:]), f"{each} is not {asked}: run make lock"


def is_pinned(requirement: Requirement) -> bool:
    return [each.operator for each in requirement.specifier] == ["=="]


def test_only_the_installation_reaches_the_image() -> None:
    assert arguments_of(FINAL, "COPY") == ["--from=build /opt/scankv /opt/scankv"]
    assert not any("pip" in command for command in arguments_of(FINAL, "RUN"))


def test_the_image_runs_a_version_of_python_that_every_change_is_tested_with() -> None:
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    for stage in (BUILD, FINAL):
        assert arguments_of(stage, "FROM")[0].partition(" ")[0] == f"python:{oldest}-slim"


def test_the_server_in_the_image_is_not_root_and_keeps_its_data_in_a_volume() -> None:
    (user,) = arguments_of(FINAL, "USER")
    assert [int(number) > 0 for number in user.split(":")] == [True, True]
    (environment,) = arguments_of(FINAL, "ENV")
    variables = dict(pair.split("=", 1) for pair in environment.split())
    assert arguments_of(FINAL, "VOLUME") == [variables["SCANKV_DATA"]]
    # What a new volume gets is what the image has there.
    assert f"install -d -m 700 -o scankv -g scankv {variables['SCANKV_DATA']}" in arguments_of(FINAL, "RUN")[0]
    names = {name.removeprefix("SCANKV_").lower() for name in variables if name.startswith("SCANKV_")}
    assert names <= SETTINGS
    assert "insecure" not in names
    assert arguments_of(FINAL, "EXPOSE") == [str(ServerConfig(data=Path("x")).port)]


def test_the_image_contains_no_secrets() -> None:
    named = [text for stage in (BUILD, FINAL) for name, text in stage if name in {"ARG", "ENV", "COPY"}]
    assert not re.search(r"token|secret|password|\.pem|\.key", " ".join(named), re.IGNORECASE)


def test_the_server_in_the_image_is_stopped_and_watched_as_it_expects() -> None:
    assert arguments_of(FINAL, "STOPSIGNAL") == ["SIGTERM"]
    (probe,) = arguments_of(FINAL, "HEALTHCHECK")
    words = json.loads(probe.partition("CMD ")[2])
    check_command(words)
    assert words[1] == "wait"
    (limit,) = re.findall(r"--timeout=(\d+)s", probe)
    assert float(words[-1]) < float(limit)
    (program,), (arguments,) = arguments_of(FINAL, "ENTRYPOINT"), arguments_of(FINAL, "CMD")
    check_command([*json.loads(program), *json.loads(arguments)])


def test_the_service_starts_a_command_with_options_that_exist() -> None:
    (command,) = read_unit()["ExecStart"]
    words = command.split()
    check_command(words)
    assert words[-1] == "$SCANKV_OPTIONS"
    data = words[words.index("--data") + 1]
    (directory,) = read_unit()["StateDirectory"]
    assert data == f"/var/lib/{directory}"
    assert read_unit()["RequiresMountsFor"] == [data]
    (file,) = read_unit()["EnvironmentFile"]
    (configuration,) = read_unit()["ConfigurationDirectory"]
    assert file.startswith(f"-/etc/{configuration}/")


def test_settings_in_the_comments_of_the_service_exist() -> None:
    named = re.findall(r"^#.*?\bSCANKV_([A-Z_]+)=", UNIT.read_text(), re.MULTILINE)
    assert {name.lower() for name in named} <= SETTINGS


def test_the_service_lets_the_server_drain_and_does_not_repeat_a_start_that_cannot_succeed() -> None:
    unit = read_unit()
    assert unit["KillSignal"] == ["SIGTERM"]
    assert unit["Restart"] == ["on-failure"]
    assert unit["RestartPreventExitStatus"] == [str(EXIT_FOREIGN_DIRECTORY)]
    assert float(unit["TimeoutStopSec"][0]) >= 2 * ServerConfig(data=Path("x")).drain_seconds
    assert int(unit["LimitNOFILE"][0]) >= 65_536


def test_systemd_accepts_the_service(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    (command,) = read_unit()["ExecStart"]
    # The program is not installed here.
    unit.write_text(UNIT.read_text().replace(command.split()[0], shutil.which("true") or "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], check=False, capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert rated.returncode == 0, rated.stdout
