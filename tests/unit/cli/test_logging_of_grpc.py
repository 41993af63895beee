"""gRPC logs errors in commands that serve, and nothing in others, whose messages say the same."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from scankv.cli import app


@pytest.mark.parametrize(
    ("words", "verbosity"),
    [
        (["serve", "--help"], "ERROR"),
        (["--profile", "x", "http", "--help"], "ERROR"),
        (["tables", "--help"], "NONE"),
        (["--help"], "NONE"),
    ],
)
def test_commands_that_serve_log_the_errors_of_grpc(
    words: list[str], verbosity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    # Replaced for the environment to be restored after the test, too.
    monkeypatch.setenv("GRPC_VERBOSITY", "")
    monkeypatch.delenv("GRPC_VERBOSITY")
    monkeypatch.setattr(sys, "argv", ["scankv", *words])
    monkeypatch.setattr(app, "keep_pandas_out", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(app, "app", lambda **_: seen.append(os.environ["GRPC_VERBOSITY"]))
    app.main()
    assert seen == [verbosity]
