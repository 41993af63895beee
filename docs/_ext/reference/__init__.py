"""The reference, generated from the code when the site is built.

A page of the reference has a comment such as `<!-- generated: settings -->` in the place of generated Markdown. The
words after the name are the arguments of the generator: `<!-- generated: python scankv connect Client -->`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import (
    column_types,
    command_line,
    cross_references,
    docstrings,
    errors,
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
GENERATORS: dict[str, Callable[..., str]] = {
    "command_line": command_line.describe_commands,
    "errors": errors.describe_errors,
    "metrics": metrics.describe_metrics,
    "permissions": permissions.describe_permissions,
    "python": python_api.describe_names,
    "settings": settings.describe_settings,
    "table_options": table_options.describe_table_options,
    "types": column_types.describe_types,
    "wire": wire.describe_file,
}


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Replaces the markers of a page by generated Markdown."""
    if page.startswith("reference/"):
        source[0] = MARKER.sub(lambda found: GENERATORS[found[1]](*found[2].split()), source[0])


def list_reference_pages(app: Sphinx, env: BuildEnvironment, *_: object) -> list[str]:
    """Returns the pages that every build must generate again, because Sphinx does not track the code behind them."""
    return [page for page in env.found_docs if page.startswith("reference/")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the generators to Sphinx."""
    app.connect("source-read", fill_in)
    app.connect("env-get-outdated", list_reference_pages)
    # Before napoleon, which has 500.
    app.connect("autodoc-process-docstring", docstrings.convert_to_rst, priority=400)
    app.add_post_transform(cross_references.ExactReferences)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
