"""How Sphinx builds the site: `sphinx-build -W --keep-going -n docs build/site`.

The pages are plain Markdown; `_toc.yml` has their order. Nothing that a reader's browser needs is
fetched from elsewhere.
"""

import shutil
from pathlib import Path

from sphinx.domains.python import PyObject
from sphinx.util import rst

import attnscope
from attnscope.base.options import in_python

project = "attnscope"
version = release = attnscope.__version__
copyright = "attnscope's authors, MIT licence"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_external_toc",
]
external_toc_path = "_toc.yml"

html_theme = "furo"
html_title = f"attnscope {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False

myst_heading_anchors = 4
"""Headings have the anchors that they have on code hosts."""

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 180
nb_ipywidgets_js = {}

copybutton_prompt_text = "$ "

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "code"
"""Single backquotes in docstrings are code."""

nitpick_ignore_regex = [
    ("py:.*", r"(?!attnscope\.).*"),  # other libraries' types: their documentation is not fetched
    ("py:class", r"attnscope\.base\.process\.progress\.Progress"),  # an alias of a type of callables
    ("py:class", r"attnscope\.(.*\.)?options\..*"),  # groups, whose options are keywords
    ("py:class", r"attnscope\.document\.blocks\..*"),  # internal: not documented
]


def add_options(app, what, name, kind, options, lines):
    """Describe the fields of a dataclass of options by the help of their flags."""
    for each in getattr(kind, "__dataclass_fields__", {}).values():
        if flag := each.metadata.get("flag"):
            words = [
                f"``{word}``" if word.startswith("--") else rst.escape(word)
                for word in in_python(flag.help).split()
            ]
            default = "" if each.default in (None, False) else f" Default: ``{each.default}``."
            lines.append(f":ivar {each.name}: \\ {' '.join(words)}{default}")


def keep_colons(app, what, name, kind, options, lines):
    """Begin the sentence of a field with a colon: what precedes the first is taken for a type."""
    if what == "attribute" and lines:
        lines[0] = f": {lines[0]}"


def copy_sources(app, exception):
    """Copy the pages as they are beside their HTML, and `llms.txt`, which links to them."""
    if exception:
        return
    docs, output = Path(app.srcdir), Path(app.outdir)
    for page in [*docs.rglob("*.md"), *docs.rglob("*.ipynb")]:
        shutil.copy(page, output / page.relative_to(docs))
    text = (docs.parent / "llms.txt").read_text(encoding="utf-8")
    (output / "llms.txt").write_text(text.replace("](docs/", "]("), encoding="utf-8")


def setup(app):
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("autodoc-process-docstring", add_options)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before Google's style is read
    app.connect("build-finished", copy_sources)
