"""References to names in docstrings and signatures, looked up where a reader would expect them."""

from __future__ import annotations

from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform


class ExactReferences(SphinxPostTransform):
    """Looks a name up in the module that mentions it and in `scankv`.

    Sphinx would take any object that ends in the name: an attribute `bytes` for the type, and two classes `Table` for
    each other.
    """

    default_priority = 5  # the resolver has 10

    def run(self, **_: object) -> None:
        """Narrow each reference of a page."""
        objects = self.env.domains.python_domain.objects
        for node in self.document.findall(addnodes.pending_xref):
            if node.get("refdomain") != "py" or not node.hasattr("refspecific"):
                continue
            name, module = node["reftarget"].lstrip("."), node.get("py:module")
            candidates = (f"{module}.{name}", f"scankv.{name}")
            node["reftarget"] = next((full for full in candidates if full in objects), name)
            for attribute in ("refspecific", "py:module", "py:class"):
                node.attributes.pop(attribute, None)
