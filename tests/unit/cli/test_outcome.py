from __future__ import annotations

import pytest

from scankv.cli.outcome import complain, require_extra
from scankv.model.errors import UsageError
from scankv.model.installing import command_to_install


def test_a_missing_package_is_named_with_what_installs_it() -> None:
    with pytest.raises(UsageError) as raised, require_extra("server"):
        raise ModuleNotFoundError("No module named 'rocksdict'", name="rocksdict")
    assert raised.value.message == f"rocksdict is not installed; {command_to_install('server')}"


def test_a_missing_module_of_our_own_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError), require_extra("server"):
        raise ModuleNotFoundError("No module named 'streaming_server.x'", name="streaming_server.x")


def test_a_complaint_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    complain("first\n  second")
    assert capsys.readouterr().err == "scankv: error: first\n  second\n"
