"""The docs site: `make docs`, then open `_docs/html/index.html`. `_pages.py` reads notebooks, `_site.py` writes what stands around them."""
import sys
from pathlib import Path

nbs = Path(__file__).resolve().parent
sys.path[:0] = [str(nbs), str(nbs.parent)]

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from execnb.nbio import mk_cell, nb2str

from _pages import cfg, included, myst_text, read_page
from _site import contents, plain, site, twin, write_site

project, author, release, copyright = cfg.title, cfg.author, cfg.version, cfg.copyright
extensions = ['myst_nb', 'sphinx_copybutton']
source_suffix = {'.ipynb': 'myst-nb', '.qmd': 'myst-nb'}
exclude_patterns = ['_*', '.*', '**/.*']
suppress_warnings = ['myst.header']     # `show_doc` writes third-level headings, wherever it stands
html_theme, html_title, html_baseurl = 'furo', cfg.title, site
html_static_path, html_css_files = ['_static'], ['site.css']
html_copy_source = False
html_math_renderer = 'mathml'
nb_execution_mode = 'off'
nb_merge_streams = True
nb_code_prompt_show = nb_code_prompt_hide = 'Code'
nb_render_markdown_format = 'myst'
nb_ipywidgets_js = {}                   # no page needs a widget's script, least of all from a CDN
myst_enable_extensions = ['attrs_block', 'attrs_inline', 'colon_fence', 'dollarmath']
myst_heading_anchors = 3


def read_source(app, docname, source):
    "Give Sphinx the page that stands in a notebook or a Quarto file"
    path = app.env.doc2path(docname)
    if path.suffix == '.ipynb':
        nb = read_page(path)
        app.env.twins[docname] = twin(nb)
        if docname == 'index': nb.cells += [mk_cell(o, 'markdown') for o in contents()]
        source[0] = nb2str(nb)
    else:
        source[0] = myst_text(included(source[0], path.parent))
        app.env.twins[docname] = plain(source[0]) + '\n'


def start(app):
    if not hasattr(app.env, 'twins'): app.env.twins = {}     # docname → Markdown; kept for pages that have not changed


def forget(app, env, docname): env.twins.pop(docname, None)


def add_twin(app, pagename, templatename, context, doctree):
    "Say in the page where its Markdown twin is"
    if pagename in app.env.twins: context['metatags'] += f'<link rel="alternate" type="text/markdown" href="{pagename.rpartition("/")[2]}.md">'


def mathml(self, node):
    "Formulas as MathML, which browsers draw without a script"
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):
    for event, f in {'builder-inited': start, 'env-purge-doc': forget, 'source-read': read_source, 'html-page-context': add_twin,
                     'build-finished': write_site}.items(): app.connect(event, f)
    app.add_html_math_renderer('mathml', (mathml, None), (mathml, None))
