"""Configure the docs site: `make docs` builds `_docs/html/index.html`

`_pages.py` converts notebooks to pages. Beside each page stands its Markdown twin; `llms.txt` names all of them.
"""
import re, sys
from pathlib import Path

nbs = Path(__file__).resolve().parent
sys.path[:0] = [str(nbs), str(nbs.parent)]

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from execnb.nbio import mk_cell, nb2str
from sphinx import addnodes

from _pages import cfg, entries, filled, matching, myst_text, read_page, site

project, author, release, copyright = cfg.title, cfg.author, cfg.version, cfg.copyright
extensions = ['myst_nb', 'sphinx_copybutton']
source_suffix = {'.ipynb': 'myst-nb', '.qmd': 'myst-nb'}
exclude_patterns = ['_*', '.*', '**/.*']
suppress_warnings = ['myst.header']     # a symbol has a third-level heading everywhere
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

twins = {}      # page → Markdown
SIDEBAR = {     # heading → pages; those with entries of their own name them
    'Start': 'start/*', 'Lessons': 'lessons/0* tutorials/0*',
    'How-to': 'howto/00_recipes howto/00_from_other_libraries', 'Examples': 'examples/00_overview',
    'API by task': '99_all api/*', 'Internals': 'internals/00_inside'}


def plain(s):
    "Turn MyST into plain Markdown"
    s = re.sub(r'<!--.*?-->|^```\{toctree\}.*?^```\n?', '', s, flags=re.M | re.S)
    s = re.sub(r'^\([\w.-]+\)=\n?|^\{\.[\w-]+\}\n|\{\.(?:source-link|chart)\}|^:{3,}.*\n?', '', s, flags=re.M)
    return re.sub(r'\n{3,}', '\n\n', s).strip()


def twin(nb):
    "Write a page in plain Markdown: text, code, and outputs, with a mark for a picture"
    res = []
    for c in nb.cells:
        tags = c.metadata.get('tags', [])
        if c.cell_type == 'markdown': res.append(plain(c.source))
        elif 'remove-input' not in tags: res.append(f'````python\n{c.source}\n````')
        for o in c.get('outputs', []) if 'remove-output' not in tags else ():
            text = ''.join(o.get('text', o.get('data', {}).get('text/plain', o.get('traceback', ''))))
            if 'image/png' in o.get('data', {}): res.append('*(a picture)*')
            elif text.strip(): res.append('````text\n' + re.sub(r'\x1b\[[\d;]*m', '', text).rstrip() + '\n````')
    return '\n\n'.join(filter(None, res)) + '\n'


def with_links(text, labels, page):
    "Turn links between pages into links between their twins"
    up = '../'*page.count('/')
    def to(m): return f']({up}{labels[m[1]][0]}.md)' if m[1] in labels else m[0]
    text = re.sub(r'\]\(#([\w.-]+)\)', to, text)
    text = re.sub(r'\]\((?:\.\./)*images/', f']({up}_images/', text)
    return re.sub(r'\]\((?!\w+:)([\w./-]+)\.(?:ipynb|qmd)', r'](\1.md', text)


def read_source(app, page, source):
    path = app.env.doc2path(page)
    if path.suffix == '.qmd':
        text = re.sub(r'\A(# .*)\n+> (.*)', r'\1\n\n{.lead}\n\2', filled(source[0], page))
        source[0] = myst_text(text)
        def file(m): return (path.parent/m[1]).read_text(encoding='utf-8').split('\n', 1)[1].replace('](nbs/', '](../')
        twins[page] = plain(re.sub(r'```\{include\} (.*)\n[^`]*```', file, source[0])) + '\n'
        return
    nb = read_page(path)
    twins[page] = twin(nb)
    for heading, pages in SIDEBAR.items() if page == 'index' else ():
        lines = ['```{toctree}', ':hidden:', f':caption: {heading}', '', *matching(pages), '```']
        nb.cells.append(mk_cell('\n'.join(lines), 'markdown'))
    source[0] = nb2str(nb)


def add_twin(app, page, template, context, doctree):
    "Link a page to its twin; let the keyboard reach what scrolls, code and tables; leave out tags of plain text"
    tree = context['furo_navigation_tree']      # which lacks the level of its headings
    context['furo_navigation_tree'] = tree.replace('role="heading"', 'role="heading" aria-level="2"')
    if page not in twins: return
    context['metatags'] += f'<link rel="alternate" type="text/markdown" href="{page.rpartition("/")[2]}.md">'
    body = context['body'].replace('"highlight"><pre><span></span>', '"highlight"><pre tabindex="0">')
    body = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
    body = body.replace('<summary aria-label="Toggle hidden content">', '<summary>')    # it has a name of its own
    context['body'] = re.sub(r'<span class="(?:n|o|p|w|pre)">([^<]*)</span>', r'\1', body)


def add_entries(app, doctree):
    "Put what leads to a page into the general index, where the search looks first"
    page, found = app.env.docname, entries(app.env.docname)
    if not found: return
    node = addnodes.index(entries=[('single', o, to, 'main' if is_first else '', None) for o, to, _, is_first in found])
    doctree[0].insert(1, node)
    shown = [('single', o, to, '', None) for o, to, is_shown, _ in found if is_shown]
    app.env.get_domain('index').entries.setdefault(page, []).extend(shown)


def write_lists(app, error):
    "Write the twins, and a list of them for programs that read Markdown"
    if error or app.builder.name != 'html': return
    labels, pages = app.env.get_domain('std').anonlabels, sorted(twins)
    lines = [f'# {cfg.title}', '', f'> {cfg.description}', '',
             f'`pip install git+{cfg.git_url}`, then `from {cfg.lib_name}.all import *`.', '']
    for page in pages:
        text = with_links(twins[page], labels, page)
        (app.outdir/f'{page}.md').write_text(text, encoding='utf-8')
        lead = re.match(r'# .*\n+(.*)', text)[1]
        lines.append(f'- [{app.env.titles[page].astext()}]({site}{page}.md): {lead}')
    (app.outdir/'llms.txt').write_text('\n'.join(lines) + '\n', encoding='utf-8')


def mathml(self, node):
    "Write formulas as MathML, which browsers draw without a script"
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):
    events = {'source-read': read_source, 'doctree-read': add_entries, 'html-page-context': add_twin,
              'build-finished': write_lists}
    for event, f in events.items(): app.connect(event, f, priority=600)     # after the theme
    app.add_html_math_renderer('mathml', (mathml, None), (mathml, None))
