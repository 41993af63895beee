"""Fixtures of the fault tests."""

from __future__ import annotations

import subprocess

import pytest


@pytest.fixture(scope="session")
def strace() -> None:
    """Fails if strace is missing or not allowed to trace."""
    try:
        subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.fail("strace is not installed (Debian: apt-get install strace)")
    except subprocess.CalledProcessError as error:
        pytest.fail(f"strace may not trace here; a container needs the capability SYS_PTRACE: {error.stderr}")
