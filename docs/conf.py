"""How Sphinx builds the documentation site; `make docs` runs it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path

from sphinx.ext.autodoc.mock import MockFinder  # type: ignore[attr-defined]

# The directory of the extensions that only this site uses.
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

# The reference imports the Spark bridge. `make docs` installs no PySpark, which has half a gigabyte.
if find_spec("pyspark") is None:
    sys.meta_path.insert(0, MockFinder(["pyspark"]))
    # The bridge asks for its signature when it is imported, which a mock does not have.
    import_module("pyspark.sql.pandas.types").to_arrow_schema = lambda schema, timezone: None  # type: ignore[attr-defined]

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
    "sidebar_tree",
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
html_logo = "_static/logo.svg"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["scankv.css"]
html_js_files = ["folds.js"]
# The default for dark pages underlines imported names, as if they were links.
pygments_dark_style = "github-dark"
html_search_scorer = str(Path(__file__).parent / "_static" / "search-scores.js")
# A page of the site links to files of the repository where this is set, as when a release builds the site.
repository_url = ""
