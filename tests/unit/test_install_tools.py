"""`.ci/install-tools`, the first step of `make test`, installs missing tools or prints the command that does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "install-tools"
JAVA = "echo 'openjdk version \"{version}\" 2024-01-16' >&2"
INSTALL = (
    "apt-get install -y --no-install-recommends default-jre-headless strace gcc libc6-dev chromium chromium-driver "
    "systemd"
)
_TOOLS = "Java 17 or newer, strace, a C compiler, Chromium with chromedriver and systemd"
NEEDED = f"The tests need {_TOOLS}"


class Machine:
    """A directory with the only programs that the script can find."""

    def __init__(self, directory: Path, user: int) -> None:
        self.programs = directory
        for name in ("bash", "sed", "head", "env"):
            (directory / name).symlink_to(shutil.which(name) or "")
        self.add("id", f"echo {user}")
        self.add("apt-get", f"echo apt-get $* >> {directory}/asked")

    def add(self, name: str, script: str = "") -> None:
        """Adds a program that runs a line of shell."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        path.chmod(0o755)

    def add_tools(self, java: str = "17.0.15") -> None:
        """Adds all tools that the tests need."""
        self.add("java", JAVA.format(version=java))
        for name in ("strace", "cc", "chromium", "chromedriver", "systemd-analyze"):
            self.add(name)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs the script with only these programs."""
        return subprocess.run(
            [SCRIPT],
            env={"PATH": str(self.programs), **environment},
            check=False,
            timeout=60,
            capture_output=True,
            text=True,
        )

    @property
    def asked(self) -> list[str]:
        """Returns the commands given to the package manager."""
        path = self.programs / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def root(tmp_path: Path) -> Machine:
    return Machine(tmp_path, 0)


@pytest.fixture
def user(tmp_path: Path) -> Machine:
    return Machine(tmp_path, 1000)


@pytest.mark.parametrize("java", ["17.0.15", "25"])
def test_nothing_is_installed_where_nothing_is_missing(user: Machine, java: str) -> None:
    user.add_tools(java)
    done = user.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("java", ["11.0.2", "1.8.0_402"])
def test_an_old_java_counts_as_missing(user: Machine, java: str) -> None:
    user.add_tools(java)
    done = user.run()
    assert done.returncode == 1
    assert "The tests need Java 17 or newer. As root, type:" in done.stderr


def test_a_driver_without_a_browser_counts_as_missing(user: Machine) -> None:
    user.add_tools()
    (user.programs / "chromium").unlink()
    assert "The tests need Chromium with chromedriver. As root" in user.run().stderr


def test_root_installs_what_is_missing_and_stops_if_it_still_is(root: Machine) -> None:
    done = root.run()
    assert root.asked == ["apt-get -qq update", INSTALL]
    assert done.returncode == 1
    assert f"but the tests still need {_TOOLS}" in done.stderr


def test_root_installs_nothing_when_that_is_forbidden(root: Machine) -> None:
    done = root.run(SCANKV_NO_INSTALL="1")
    assert (done.returncode, root.asked) == (1, [])
    assert f"{NEEDED}, and SCANKV_NO_INSTALL forbids installing anything. Type:" in done.stderr
    assert f"    apt-get update && {INSTALL}\n" in done.stderr


def test_a_user_without_sudo_is_told_what_root_has_to_type(user: Machine) -> None:
    done = user.run()
    assert (done.returncode, user.asked) == (1, [])
    assert done.stderr == f"{NEEDED}. As root, type:\n    apt-get update && {INSTALL}\n"


def test_a_user_whose_sudo_asks_for_a_password_is_told_what_to_type(user: Machine) -> None:
    user.add("sudo", "exit 1")
    done = user.run()
    assert (done.returncode, user.asked) == (1, [])
    assert done.stderr == f"{NEEDED}. Type:\n    sudo apt-get update && sudo {INSTALL}\n"


def test_a_user_with_sudo_installs_by_it(user: Machine) -> None:
    user.add("sudo", '[ "$1" != -n ] || exit 0; "$@"')
    user.run()
    assert user.asked == ["apt-get -qq update", INSTALL]


def test_a_machine_on_which_localhost_has_no_address_is_told_so(user: Machine) -> None:
    user.add("getent", "exit 2")
    done = user.run()
    assert done.returncode == 1
    assert "echo 127.0.0.1 localhost >> /etc/hosts" in done.stderr
