"""`scankv monitoring export` writes the files that come with the package."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandLine

NAMES = {"grafana-dashboard.json", "alerts.yml"}


def test_the_dashboard_and_the_alert_rules_are_exported(scankv: CommandLine, tmp_path: Path) -> None:
    target = tmp_path / "new" / "monitoring"
    printed = scankv("monitoring", "export", str(target)).text.split()
    assert set(printed) == {str(target / name) for name in NAMES}
    package = files("scankv.monitoring")
    assert NAMES == {path.name for path in package.iterdir() if path.name.endswith((".json", ".yml"))}
    for name in NAMES:
        assert (target / name).read_bytes() == package.joinpath(name).read_bytes()


def test_files_that_exist_are_replaced_only_if_asked_for(scankv: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text("mine")
    assert "must not exist" in scankv.fails("monitoring", "export", str(tmp_path))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    scankv("monitoring", "export", str(tmp_path), "--force")
    assert {path.name for path in tmp_path.iterdir()} == NAMES
    (tmp_path / "file").touch()
    assert "cannot be written" in scankv.fails("monitoring", "export", str(tmp_path / "file"))
