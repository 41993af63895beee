"""Folds the long descriptions on pages of classes with many methods.

Of each method, the page then shows the signature, the first paragraph and its examples. What is folded stays in the
page, so that the search of the site and of the browser find it; `_static/folds.js` unfolds what a link leads to.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

MANY_METHODS = 10
SHORT_CHARACTERS = 250
"""A description that exceeds its first paragraph and examples by less stays unfolded."""


class Folds(SphinxPostTransform):
    """Folds the descriptions of the methods of a page that has many."""

    default_priority = 900  # after all references are resolved
    formats = ("html",)

    def run(self, **_: object) -> None:
        """Folds, on the page of a class."""
        if self.env.docname.startswith("reference/python/scankv."):
            fold_methods(self.document)


def fold_methods(document: nodes.document) -> None:
    """Folds the descriptions of methods if there are many methods."""
    methods = [desc for desc in document.findall(addnodes.desc) if desc["objtype"] == "method"]
    if len(methods) >= MANY_METHODS:
        for method in methods:
            _fold(next(each for each in method.children if isinstance(each, addnodes.desc_content)))


def _fold(content: addnodes.desc_content) -> None:
    shown = 1
    while shown < len(content) and isinstance(content[shown], nodes.literal_block):
        shown += 1
    folded = content.children[shown:]
    if sum(len(each.astext()) for each in folded) < SHORT_CHARACTERS:
        return
    begin = f'<details class="member"><summary>{_name_parts(folded)}</summary>'
    content.insert(shown, nodes.raw("", begin, format="html"))
    content.append(nodes.raw("", "</details>", format="html"))


def _name_parts(folded: list[nodes.Node]) -> str:
    """Returns what is folded, such as "Details, parameters, errors"."""
    parts = [] if all(isinstance(each, nodes.field_list) for each in folded) else ["details"]
    for each in folded:
        parts += [re.sub("^raises$", "errors", name.astext().lower()) for name in each.findall(nodes.field_name)]
    return ", ".join(parts).capitalize()
