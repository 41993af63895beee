"""How Sphinx builds the documentation site; `make docs` runs it."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

# The directory of the extensions that only this site uses.
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "ScanKV"
author = "The ScanKV authors"
copyright = "The ScanKV authors, Apache-2.0"
release = version = installed_version("scankv")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "repository_links",
    "reference",
]
exclude_patterns = ["_ext", "_incoming", "Thumbs.db"]
source_suffix = {".md": "markdown"}
highlight_language = "none"

# Anchors of headings are those that GitHub makes, so that one link works in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist", "html_image"]

# Names in docstrings, as `Scan.stream`, become links where there is something to link to.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["What to do"]

html_theme = "furo"
html_title = "ScanKV"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["scankv.css"]
# A page of the site links to files of the repository where this is set, as when a release builds the site.
repository_url = ""
