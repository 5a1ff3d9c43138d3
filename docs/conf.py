"""Settings of the documentation site: `make docs` builds it, and a warning is an error."""

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx_gallery import backreferences

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import generate  # noqa: E402

import gpcache  # noqa: E402

project = "gpcache"
author = "the gpcache developers"
version = release = gpcache.__version__
extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_parser", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build", "reference/generated", "examples", "notebooks"]
html_theme = "pydata_sphinx_theme"
html_title = "gpcache"
html_show_sourcelink = False
html_theme_options = {"navbar_end": ["theme-switcher"], "footer_start": [], "footer_end": []}
html_theme_options |= {"secondary_sidebar_items": ["page-toc"], "show_prev_next": False}
html_sidebars = {"index": []}

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
# GitHub shows these blocks with colours; Sphinx has no lexer for some of them.
suppress_warnings = ["misc.highlighting_failure", "config.cache"]

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False

# It looks for names in parent packages, where gpcache says by an ImportError what moved.
backreferences._get_short_module_name = lambda module_name, _: module_name
sphinx_gallery_conf = {"examples_dirs": "examples", "gallery_dirs": "gallery"}
sphinx_gallery_conf |= {"filename_pattern": r"\.py$", "remove_config_comments": True}
sphinx_gallery_conf |= {"show_memory": False, "show_signature": False, "min_reported_time": 1e9}
sphinx_gallery_conf |= {"download_all_examples": False, "write_computation_times": False}


def skip_requests(_app, _what, name: str, _member, skip: bool, _options) -> bool:
    """Leave out the methods that scikit-learn adds to every estimator for metadata routing."""
    return skip or (name.startswith("set_") and name.endswith("_request"))


def refuse_outside_loads(app: Sphinx, failure: Exception | None) -> None:
    """Fail if a page would load a script, a style, a font or a picture from another host."""
    loads = re.compile(r'<(script|img|iframe)[^>]*src="\w+://|<link[^>]*rel="(?!canonical)[^>]*://')
    pages = [] if failure else sorted(Path(app.outdir).rglob("*.html"))
    outside = [page.name for page in pages if loads.search(page.read_text())]
    if outside:
        raise ExtensionError(f"These pages load from another host: {', '.join(outside)}.")


def setup(app: Sphinx) -> None:
    """Write generated pages, and show equations as MathML, which needs no script."""
    app.connect("build-finished", refuse_outside_loads)
    generate.write_all(HERE / "reference" / "generated")
    app.connect("autodoc-skip-member", skip_requests)
    app.add_html_math_renderer("mathml", (show_math, None), (show_math, None))


html_math_renderer = "mathml"


def show_math(translator, node):
    """Append an equation, within a line or on a line of its own."""
    block = isinstance(node, nodes.math_block)
    found = tex2mathml(node.astext(), as_block=block)
    translator.body.append(f'<p class="math">{found}</p>' if block else found)
    raise nodes.SkipNode
