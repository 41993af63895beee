"""The rules of axe-core for pages that all people can use, run on the page that a browser shows."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from selenium.webdriver import Chrome

_RUN = """
const [tags, done] = arguments;
axe.run(document, {runOnly: {type: "tag", values: tags}}).then(done, (error) => done(String(error)));
"""
_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@cache
def _script() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def problems_of(browser: Chrome, kinds: Sequence[str] = ("violations", "incomplete")) -> list[str]:
    """Returns where the page breaks a rule, and where axe cannot tell (`incomplete`); empty if it keeps all of them.

    axe can never tell the contrast of text in a drawing; `test_charts.py` measures it.

    The driver runs the script beside the page, so the page's Content-Security-Policy, which allows none, stays.
    """
    browser.execute_script(_script())
    result = browser.execute_async_script(_RUN, _TAGS)
    assert isinstance(result, dict), result
    # A rule that cannot fail on any element of the page would show that the script has not seen the page.
    assert len(result["passes"]) > 10
    return [
        f"{rule['id']}: {rule['help']}: {node['html']} ({node['failureSummary']})"
        for kind in kinds
        for rule in result[kind]
        for node in rule["nodes"]
        if not (kind == "incomplete" and rule["id"] == "color-contrast" and node["html"].startswith("<text "))
    ]
