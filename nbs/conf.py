"""Configure the docs site: `make docs` builds `_docs/html/index.html`

`_pages.py` converts notebooks to pages, `_site.py` writes what surrounds them.
"""
import re, sys
from pathlib import Path

nbs = Path(__file__).resolve().parent
sys.path[:0] = [str(nbs), str(nbs.parent)]

from docutils import nodes
from sphinx import addnodes
from docutils.utils.math.latex2mathml import tex2mathml
from execnb.nbio import mk_cell, nb2str

from _names import entries, filled, public_on
from _pages import cfg, included, myst_text, read_page
from _reference import INNER
from _site import contents, has_examples, plain, site, twin, write_site

project, author, release, copyright = cfg.title, cfg.author, cfg.version, cfg.copyright
extensions = ['myst_nb', 'sphinx_copybutton']
source_suffix = {'.ipynb': 'myst-nb', '.qmd': 'myst-nb'}
exclude_patterns = ['_*', '.*', '**/.*', *([] if has_examples() else ['examples'])]
suppress_warnings = ['myst.header']     # `show_doc` writes third-level headings everywhere
html_theme, html_title, html_baseurl = 'furo', cfg.title, site
html_static_path, html_css_files = ['_static'], ['site.css']
html_copy_source = False
html_math_renderer = 'mathml'
nb_execution_mode = 'off'
nb_merge_streams = True
nb_code_prompt_show = nb_code_prompt_hide = 'Code'
nb_render_markdown_format = 'myst'
nb_ipywidgets_js = {}                   # no page needs the script of a widget, or a CDN
myst_enable_extensions = ['attrs_block', 'attrs_inline', 'colon_fence', 'dollarmath']
myst_heading_anchors = 4


def read_source(app, docname, source):
    "Read the page of a notebook or a Quarto file"
    path = app.env.doc2path(docname)
    if path.suffix == '.ipynb':
        nb = read_page(path, public_on(docname))
        for c in nb.cells:
            if c.cell_type == 'markdown': c.source = myst_text(filled(c.source, docname))
        app.env.twins[docname] = twin(nb)
        if docname == 'index': nb.cells += [mk_cell(o, 'markdown') for o in contents()]
        source[0] = nb2str(nb)
    else:
        text = filled(included(source[0], path.parent), docname)
        source[0] = myst_text(re.sub(r'\A(# .*)\n+> (.*)', r'\1\n\n{.lead}\n\2', text))
        app.env.twins[docname] = plain(source[0]) + '\n'


def start(app):
    if not hasattr(app.env, 'twins'): app.env.twins = {}     # docname → Markdown; kept for unchanged pages


def forget(app, env, docname): env.twins.pop(docname, None)


def add_twin(app, pagename, templatename, context, doctree):
    "Link a page to its Markdown twin"
    if pagename not in app.env.twins: return
    name = pagename.rpartition('/')[2]
    context['metatags'] += f'<link rel="alternate" type="text/markdown" href="{name}.md">'


def shorten_code(app, page, template, context, doctree):
    "Let the keyboard reach code and outputs, which scroll; leave out the tags of what has the colour of text"
    if 'body' not in context: return
    body = context['body'].replace('"highlight"><pre><span></span>', '"highlight"><pre tabindex="0">')
    context['body'] = re.sub(r'<span class="(?:n|o|p|w|pre)">([^<]*)</span>', r'\1', body)


def add_entries(app, doctree):
    "Put what leads to a page into the general index, where the search looks first"
    found = entries(app.env.docname)
    if not found: return
    node = addnodes.index(entries=[('single', o, to, 'main' if is_first else '', None) for o, to, _, is_first in found])
    doctree[0].insert(1, node)
    shown = [('single', o, to, '', None) for o, to, is_shown, _ in found if is_shown]
    app.env.get_domain('index').entries.setdefault(app.env.docname, []).extend(shown)


OPEN = """function show() {       // what a link to a folded part names; most browsers do this themselves
    const o = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)))
    const folded = o && o.closest('details')
    if (folded && !folded.open) { folded.open = true; o.scrollIntoView() }
}
addEventListener('hashchange', show); addEventListener('DOMContentLoaded', show)"""


def fold_inner(app, doctree):
    "Fold away how it works"
    if not public_on(app.env.docname): return
    for part in doctree.findall(nodes.section):
        if part[0].astext() != INNER: continue
        text = 'Built step by step, with its parts, examples and checks'
        part.insert(1, nodes.raw('', f'<details class="inner"><summary>{text}</summary>', format='html'))
        part.append(nodes.raw('', '</details>', format='html'))


def mathml(self, node):
    "Write formulas as MathML, which browsers draw without a script"
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):
    events = {'builder-inited': start, 'env-purge-doc': forget, 'source-read': read_source,
              'html-page-context': add_twin, 'build-finished': write_site}
    for event, f in events.items(): app.connect(event, f)
    for f in add_entries, fold_inner: app.connect('doctree-read', f)
    app.connect('html-page-context', shorten_code)
    app.add_js_file(None, body=OPEN)
    app.add_html_math_renderer('mathml', (mathml, None), (mathml, None))
