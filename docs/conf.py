"""The site, made of this folder's pages and of docstrings.

Command:  pip install '.[docs]'; python -m sphinx -W -b html docs OUT
"""

import importlib
import inspect as python_inspect
import json
import re
import sys
import typing
from pathlib import Path

typing.GENERATING_DOCUMENTATION = (
    True  # jaxtyping's types are then shown as they are written.
)
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import catalogue
import jaxtyping
from catalogue import card, drawings
from sphinx.util import inspect

from pe_jax import __version__
from pe_jax.common import shapes
from pe_jax.trainer.reports import explorer_page

shapes.Array = jaxtyping.Array  # Not a union with NumPy's in each argument.

project = "pe_jax"
release = __version__
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx-mathjax-offline",
    "sphinx.ext.napoleon", "sphinx_copybutton",
]  # fmt: skip
exclude_patterns = [
    "package.md",  # The page of the package index, which index.md includes.
    "README.md",  # The index on GitHub; index.md has the one of the site.
]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["table.js"]
html_title = f"pe_jax {release}"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4  # Links to headings are GitHub's.
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # So are blocks of LaTeX.

default_role = "literal"  # Docstrings have single backticks.
autodoc_default_options = {"members": True}
autosummary_generate = False
copybutton_prompt_text = ">>> |\\.\\.\\. "
copybutton_prompt_is_regexp = True
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
napoleon_custom_sections = [
    ("Attributes", "params_style")
]  # Lines for several at once, no types.


def escape(app, what, name, obj, options, lines):
    """Docstrings are plain text, where |x| and *B mean themselves."""
    parts = "\n".join(lines).split("`")
    parts[::2] = [re.sub(r"[|*]", r"\\\g<0>", part) for part in parts[::2]]
    lines[:] = "`".join(parts).split("\n")


def skip(app, what, name, obj, skip, options):
    """Whether to leave out: fields, which the class describes, and what is not of this library."""
    module = getattr(obj, "__module__", None) or "pe_jax"
    return bool(
        skip or type(obj).__name__ == "_tuplegetter" or not module.startswith("pe_jax")
    )


def shorten(app, what, name, obj, options, signature, returns):
    """Of Flax modules: defaults by their names, without the fields that every module has."""
    if what != "class" or not signature:
        return None
    if "**kwargs" in signature:  # NNX hides that of __init__.
        own = inspect.signature(obj.__init__, bound_method=True)
        signature = inspect.stringify_signature(own, unqualified_typehints=True)
    signature = re.sub(r",\s*parent: .*\)$", ")", signature, flags=re.S)
    signature = re.sub(r"<class '([\w.]+)'>", r"\1", signature)
    signature = re.sub(r"<function [\w.]+<lambda>>", "...", signature)
    return re.sub(r"<function (\w+)[\w.<>]*>", r"\1", signature), returns


def list_members(app, docname, source):
    """Put a table of its functions, then one of its classes, before the members of a module."""
    source[0] = re.sub(
        r"\.\. (automodule|experimental):: (\S+)\n", summarised, source[0]
    )


def summarised(directive):
    """Return directives for a module's docstring, tables of its members, and the members.

    `.. experimental::` has the members that `EXPERIMENTAL` names, without the docstring, and
    `.. automodule::` all others.
    """
    module = importlib.import_module(directive[2])
    experimental = getattr(module, "EXPERIMENTAL", ())
    names = getattr(module, "__all__", None) or vars(module)
    own = {name: getattr(module, name) for name in names if name[0] != "_"}
    if not hasattr(module, "__all__"):
        own = {
            n: o
            for n, o in own.items()
            if getattr(o, "__module__", "") == module.__name__
        }
    if directive[1] == "experimental":
        own = {name: own[name] for name in experimental}
        parts = [f".. currentmodule:: {module.__name__}\n"]
    else:
        own = {name: one for name, one in own.items() if name not in experimental}
        parts = [
            f"{directive[0]}   :no-members:\n\n.. currentmodule:: {module.__name__}\n"
        ]
    functions = [name for name, one in own.items() if python_inspect.isroutine(one)]
    classes = [name for name, one in own.items() if python_inspect.isclass(one)]
    for title, found in [("Functions", functions), ("Classes", classes)]:
        if found:
            listed = "".join(f"   {name}\n" for name in found)
            parts += [f".. rubric:: {title}\n", f".. autosummary::\n\n{listed}"]
    parts += [f".. autofunction:: {name}\n" for name in functions]
    parts += [f".. autoclass:: {name}\n" for name in classes]
    return "\n".join(parts)


def draw_cards(app):
    """Draw the images of the cards, which are not tracked; GitHub shows the cards without them."""
    if app.builder.format == "html":
        drawings.draw(catalogue.rows(), ROOT / "docs" / card.IMAGES)


def complete_cards(app, docname, source):
    """Show the cards' images, and let their links to source files lead to the docstrings."""
    if docname.startswith("gallery/"):
        if app.builder.format == "html":
            source[0] = re.sub(r"<!-- (!\[.*\)) -->", r"\1", source[0])
        link = r"\[`(\w+)`\]\(\.\./\.\./pe_jax/.*?\)"
        source[0] = re.sub(link, r"{py:obj}`\1 <pe_jax.encodings.\1>`", source[0])


def find_research(app, env, docnames):
    """Let links to the pages of research/ lead to the pages here that include them."""
    for page in (ROOT / "docs" / "research").glob("*.md"):
        included = page.read_text().partition("{include} ")[2].split()[0]
        env.project._path_to_docname[(page.parent / included).resolve()] = (
            f"research/{page.stem}"
        )


def write_explorer(app, exception):
    """Write the explorer and its copy of Plotly; tools/write_explorer.py computed its numbers."""
    if exception or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static"
    entries = json.loads((ROOT / "docs/explorer.json").read_text(encoding="utf-8"))
    flat = lambda entry: not entry["picture"]["sigma"] and entry["name"] != "none"
    entries = [entry for entry in entries if not flat(entry)]
    about = (
        "Encodings before training, in the sizes of BERT-base. For encodings that add vectors to "
        "the input, the pictures show P·Pᵀ. For all others they show the attention logits of one "
        "repeated word, with equal projections of queries and keys. A trained model learns "
        "different projections, so its picture differs, also for encodings without parameters: see "
        "the second picture of each card. Untrained but unequal projections of RoPE give noise."
    )
    page = explorer_page.page(
        entries, title="Position encodings side by side", about=about
    )
    (folder / "explorer.html").write_text(page, encoding="utf-8")
    (folder / "plotly.min.js").write_text(
        explorer_page.plotly_source(), encoding="utf-8"
    )


def setup(app):
    app.connect("builder-inited", draw_cards)
    app.connect("build-finished", write_explorer)
    app.connect("env-before-read-docs", find_research)
    app.connect("source-read", complete_cards)
    app.connect("source-read", list_members)
    app.connect("autodoc-process-docstring", escape, priority=400)  # Before napoleon.
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", shorten)
