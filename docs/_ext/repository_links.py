"""Links from pages to files and folders of the repository that are not pages of the site.

A relative link such as `[the example](../../examples/leaderboard)` works where the repository is browsed. On the site
the link leads to `repository_url`, or shows the path if no URL is configured. MyST warns about a path that does not
exist, and the build fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]


class RepositoryLinks(SphinxPostTransform):
    """Resolves links to paths of the repository before MyST looks for pages."""

    default_priority = 8  # MystReferenceResolver has 9

    def run(self, **_: object) -> None:
        """Replaces each such reference of a page."""
        page = Path(self.env.doc2path(self.env.docname))
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node["reftype"] != "myst" or node.get("refdomain") == "doc":
                continue
            path = (page.parent / unquote(node["reftarget"].partition("#")[0])).resolve()
            if path.exists() and path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "docs"):
                node.replace_self(self._link(path.relative_to(ROOT).as_posix(), node.children))

    def _link(self, path: str, content: list[nodes.Node]) -> list[nodes.Node]:
        if self.config.repository_url:
            uri = f"{self.config.repository_url.rstrip('/')}/{path}"
            return [nodes.reference("", "", *content, refuri=uri, internal=False)]
        if "".join(node.astext() for node in content) == path:
            return [nodes.literal(path, path)]
        return [*content, nodes.Text(" ("), nodes.literal(path, path), nodes.Text(" in the repository)")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the transform and its setting."""
    app.add_config_value("repository_url", "", "env", [str])
    app.add_post_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
