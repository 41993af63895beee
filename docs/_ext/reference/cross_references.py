"""Resolves references to names in docstrings and signatures."""

from __future__ import annotations

from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform


class ExactReferences(SphinxPostTransform):
    """Looks up a name only in the module that mentions it and in `scankv`.

    By default, Sphinx accepts any object whose full name ends in the name: it would confuse the attribute `bytes` with
    the type, and the two classes `Table` with each other.
    """

    default_priority = 5  # the resolver has 10

    def run(self, **_: object) -> None:
        """Replaces each reference of a page by the full name that it means."""
        objects = self.env.domains.python_domain.objects
        for node in self.document.findall(addnodes.pending_xref):
            if node.get("refdomain") != "py" or not node.hasattr("refspecific"):
                continue
            name, module = node["reftarget"].lstrip("."), node.get("py:module")
            candidates = (f"{module}.{name}", f"scankv.{name}")
            node["reftarget"] = next((full for full in candidates if full in objects), name)
            for attribute in ("refspecific", "py:module", "py:class"):
                node.attributes.pop(attribute, None)
