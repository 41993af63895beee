"""gRPC logs nothing in commands, whose messages say the same, unless the environment says otherwise."""

from __future__ import annotations

import os
import signal

import pytest

from scankv.cli import app


@pytest.mark.parametrize(("given", "verbosity"), [(None, "NONE"), ("info", "info")])
def test_grpc_logs_in_commands_only_what_the_environment_asks_for(
    given: str | None, verbosity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    # Replaced for the environment to be restored after the test, too.
    monkeypatch.setenv("GRPC_VERBOSITY", given or "")
    if given is None:
        monkeypatch.delenv("GRPC_VERBOSITY")
    monkeypatch.setattr(app, "keep_pandas_out", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(app, "app", lambda **_: seen.append(os.environ["GRPC_VERBOSITY"]))
    app.main()
    assert seen == [verbosity]
