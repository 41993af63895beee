"""The changelog has what users notice, in entries that are short to read, and nothing of the inside of ScanKV."""

from __future__ import annotations

import re
from typing import Final

from tests.support.pages import ROOT

CHANGELOG: Final = (ROOT / "CHANGELOG.md").read_text()
INSIDE: Final = re.compile(
    r"(?:streaming_server|aio_client|spark_bridge|http_gateway|docs/internals|docs/decisions|tests)[/.]"
    r"|\btest_\w+|\bmake \w+`"
)
MOST_LINES_OF_AN_ENTRY: Final = 9


def test_the_changelog_names_nothing_that_users_do_not_see() -> None:
    assert INSIDE.findall(CHANGELOG) == []


def test_entries_of_the_changelog_are_short() -> None:
    entries = re.findall(r"^- .+\n(?:  (?!\|).+\n)*", CHANGELOG, re.MULTILINE)
    assert len(entries) > 50
    assert [entry for entry in entries if entry.count("\n") > MOST_LINES_OF_AN_ENTRY] == []
