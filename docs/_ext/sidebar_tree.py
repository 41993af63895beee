"""The tree of pages in the sidebar, resolved once for the whole site.

Sphinx resolves it for every page, which takes longer than writing the page when the tree has hundreds of pages.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from sphinx.environment.adapters.toctree import global_toctree_for_doc
from sphinx.util.osutil import relative_uri

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.builders.html import StandaloneHTMLBuilder
    from sphinx.environment import BuildEnvironment

LINK = re.compile(r'<li class="(toctree-l\d+)"><a class="reference internal" href="([^"]+)">')


def use_one_tree(app: Sphinx, page: str, template: str, context: dict[str, Any], *_: object) -> None:
    """Replaces the function by which the theme asks for the tree."""
    context["toctree"] = lambda **_: _tree_for(app.builder, page)  # type: ignore[arg-type]  # which calls this handler


def _tree_for(builder: StandaloneHTMLBuilder, page: str) -> str:
    """Returns the tree with links that are relative to a page, and the way to it marked as current."""
    way = {builder.get_target_uri(each) for each in _way_to(builder.env, page)}

    def adapt(link: re.Match[str]) -> str:
        level, uri = link.groups()
        relative = relative_uri(builder.get_target_uri(page), uri) or "#"
        item = f"{level} current" if uri in way else level
        name = "current reference" if relative == "#" else "reference"
        return f'<li class="{item}"><a class="{name} internal" href="{relative}">'

    return LINK.sub(adapt, _tree(builder))


@cache
def _tree(builder: StandaloneHTMLBuilder) -> str:
    """Returns the tree as the front page has it, in which links are paths from the root of the site."""
    tree = global_toctree_for_doc(
        *(builder.env, builder.config.root_doc, builder),
        tags=builder.tags,
        maxdepth=-1,
        titles_only=True,
    )
    return str(builder.render_partial(tree)["fragment"])


def _way_to(env: BuildEnvironment, page: str) -> list[str]:
    """Returns a page and those above it."""
    above = _parents(env)
    way = [page]
    while way[-1] in above and above[way[-1]] not in way:
        way.append(above[way[-1]])
    return way


@cache
def _parents(env: BuildEnvironment) -> dict[str, str]:
    return {page: parent for parent, pages in env.toctree_includes.items() for page in pages}


def setup(app: Sphinx) -> dict[str, bool]:
    """Puts the tree into the context of each page, before the theme reads it."""
    app.connect("html-page-context", use_one_tree, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
