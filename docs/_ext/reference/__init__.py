"""The reference, generated from the code when the site is built.

A page of the reference has a comment such as `<!-- generated: settings -->` in the place of generated Markdown. The
words after the name are the arguments of the generator: `<!-- generated: python scankv connect Client -->`.

Each class and each command has a page, whose file with such a comment is written here; Git does not have these files.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from . import (
    column_types,
    command_line,
    cross_references,
    docstrings,
    errors,
    folds,
    metrics,
    permissions,
    python_api,
    settings,
    table_options,
    wire,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

MARKER = re.compile(r"^<!-- generated: (\w+) ?(.*?) ?-->$", re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"<!-- generated: python (\S+)\s(.*?)-->", re.DOTALL)
GENERATORS: dict[str, Callable[..., str]] = {
    "class": python_api.describe_class,
    "command": command_line.describe_command,
    "command_line": command_line.describe_commands,
    "errors": errors.describe_errors,
    "first_calls": python_api.describe_first_calls,
    "metrics": metrics.describe_metrics,
    "permissions": permissions.describe_permissions,
    "python": python_api.describe_names,
    "settings": settings.describe_settings,
    "table_options": table_options.describe_table_options,
    "types": column_types.describe_types,
    "wire": wire.describe_file,
}


def write_pages(app: Sphinx) -> None:
    """Writes the pages of classes and commands, and removes those of earlier builds that are gone."""
    folder = Path(app.srcdir) / "reference"
    pages = {}
    for name in command_line.list_commands():
        pages[folder / "command-line" / f"{name}.md"] = _page(
            f"scankv {name}", f"command {name}", "[Command line](../command-line.md)"
        )
    for topic in (folder / "python").glob("[!.]*.md"):
        for module, names in LISTED.findall(topic.read_text()):
            for name in names.split():
                if python_api.has_page(getattr(import_module(module), name)):
                    title = f"{module.removeprefix('scankv').removeprefix('.')}.{name}".removeprefix(".")
                    pages[folder / "python" / f"{module}.{name}.md"] = _page(
                        title, f"class {module} {name}", f"[Python API](index.md) · [{_title_of(topic)}]({topic.name})"
                    )
    for old in {*(folder / "python").glob("scankv.*.md"), *(folder / "command-line").glob("*.md")} - set(pages):
        old.unlink()
    for page, text in pages.items():
        page.parent.mkdir(exist_ok=True)
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def _page(title: str, generator: str, above: str) -> str:
    return f"{above}\n\n# `{title}`\n\n<!-- generated: {generator} -->\n"


def _title_of(topic: Path) -> str:
    return topic.read_text().partition("\n")[0].removeprefix("# ")


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Replaces the markers of a page by generated Markdown."""
    if page.startswith("reference/"):
        source[0] = MARKER.sub(lambda found: GENERATORS[found[1]](*found[2].split()), source[0])


def list_reference_pages(app: Sphinx, env: BuildEnvironment, *_: object) -> list[str]:
    """Returns the pages that every build must generate again, because Sphinx does not track the code behind them."""
    return [page for page in env.found_docs if page.startswith("reference/")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the generators to Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", fill_in)
    app.connect("env-get-outdated", list_reference_pages)
    # Before napoleon, which has 500.
    app.connect("autodoc-process-docstring", docstrings.convert_to_rst, priority=400)
    app.add_post_transform(cross_references.ExactReferences)
    app.add_post_transform(folds.Folds)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
