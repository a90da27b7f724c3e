"""The docs site: `make docs`, then open `_docs/html/index.html`.

Sphinx reads every notebook through nbdev's own processors, so a page holds what `nbdev_docs` puts in it: directives
are obeyed, exported code becomes `show_doc`, symbols in backticks become links. The functions below turn the result
from Quarto's dialect into MyST's. No cell runs: outputs are those stored in the notebooks, and symbols are documented
as the package has them.
"""
import inspect, re, sys, yaml
from importlib import import_module
from pathlib import Path

nbs = Path(__file__).resolve().parent
sys.path.insert(0, str(nbs.parent))

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from execnb.nbio import mk_cell, nb2str, read_nb
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup
from nbdev.processors import FilterDefaults, exec_show_docs
from nbdev.showdoc import BasicMarkdownRenderer

cfg = get_config(path=nbs.parent)
project, author, release, copyright = cfg.title, cfg.author, cfg.version, cfg.copyright
extensions = ['myst_nb', 'sphinx_copybutton']
exclude_patterns = ['_*', '.*', '**/.*']
suppress_warnings = ['myst.header']     # `show_doc` writes third-level headings, wherever it stands
html_theme, html_title = 'furo', cfg.title
html_static_path, html_css_files = ['_static'], ['site.css']
html_copy_source = False
html_math_renderer = 'mathml'
nb_execution_mode = 'off'
nb_merge_streams = True
nb_code_prompt_show = nb_code_prompt_hide = 'Source'
nb_ipywidgets_js = {}                   # no page needs a widget's script, least of all from a CDN
myst_enable_extensions = ['attrs_block', 'attrs_inline', 'colon_fence', 'dollarmath']
myst_heading_anchors = 3
lookup = NbdevLookup()


class Doc(BasicMarkdownRenderer):
    "What `show_doc` shows: heading, source link, signature, docstring, and a table of the parameters"
    def parameter(self, p):
        "How `p` stands in the signature, and its row in the table"
        doc, empty = self.dm.dm.get(p.name, {}), inspect.Parameter.empty
        default = '' if p.default is empty else getattr(p.default, '__name__', None) or repr(p.default)
        name = {p.VAR_POSITIONAL: '*', p.VAR_KEYWORD: '**'}.get(p.kind, '') + p.name
        return name + (default and '='+default), [code(name), code(anno(doc.get('anno', p.annotation))), code(default), text(doc.get('docment'))]

    def _repr_markdown_(self):
        params = [self.parameter(p) for p in (self.sig.parameters.values() if self.sig else ()) if p.name not in ('self', 'cls')]
        rows, ret = [row for _, row in params], self.dm.dm.get('return', {})
        if ret.get('docment') or anno(ret.get('anno')): rows.append(['*returns*', code(anno(ret['anno'])), '', text(ret.get('docment'))])
        res = [f'({self.nm.lower()})=', '#'*self.title_level + f' {self.nm}', '']
        if src := lookup.code(self.fn): res += [f'[source]({src}){{.source-link}}', '']
        if self.sig: res += ['```python', f'{self.nm}({", ".join(o for o, _ in params)})', '```', '']
        res += [self.docs, '']
        if any(typ or about for _, typ, _, about in rows):
            res += ['{.parameters}', '| | Type | Default | |', '|---|---|---|---|'] + [f'| {" | ".join(r)} |' for r in rows]
        return '\n'.join(res) + '\n'


def anno(o): return '' if o in (inspect.Parameter.empty, None) else o if isinstance(o, str) else inspect.formatannotation(o)
def code(s): return f'`{s}`'.replace('|', r'\|') if s else ''
def text(s): return (s or '').replace('\n', ' ').replace('|', r'\|')


class Pages(FilterDefaults):
    "nbdev's processors, without those that run cells"
    def procs(self): return [o for o in self.base_procs() if o is not exec_show_docs]


def myst_text(s):
    "Callouts, and links to symbols, as MyST writes them"
    def callout(m):
        kind, title = m.groups()
        return f':::{{admonition}} {title}\n:class: {kind}\n\n' if title else f':::{{{kind}}}\n'
    s = re.sub(r'^:{3,} *\{\.callout-(\w+).*?\}\n(?:#+ (.*)\n)?', callout, s, flags=re.M)
    return re.sub(re.escape(f'{cfg.doc_host}{cfg.doc_baseurl}/') + r'[^)#\s]*(#[^)\s]+)', r'\1', s)


def myst_cell(c, symbols):
    "A cell that nbdev has processed, as MyST-NB wants it"
    if c.cell_type == 'raw':
        fm = next(yaml.safe_load_all(c.source))
        lead = f"\n\n{{.lead}}\n{fm['description']}" if 'description' in fm else ''
        return mk_cell(f"# {fm.get('title', '')}{lead}", 'markdown')
    if c.cell_type == 'markdown': c.source = myst_text(c.source)
    if c.cell_type == 'code':
        opts = dict(re.findall(r'^#\| *([\w-]+): *(.*?)\s*$', c.source, flags=re.M))
        c.source = re.sub(r'^#\|.*\n?', '', c.source, flags=re.M)
        if c.source.startswith('show_doc('):
            return mk_cell(myst_text(lookup.linkify(eval(c.source, symbols)._repr_markdown_())), 'markdown')
        hide = {'echo': 'remove-input', 'output': 'remove-output', 'include': 'remove-cell'}
        c.metadata['tags'] = [t for k, t in hide.items() if opts.get(k) == 'false'] + ['hide-input']*('code-fold' in opts)
    return c


def contents():
    "The sidebar: the notebooks in `nbs`, then those of each folder"
    for d in sorted({f.parent.relative_to(nbs) for f in nbs.rglob('[!_.]*.ipynb')}):
        if any(o[0] in '._' for o in d.parts): continue
        caption = f':caption: {d.name.title()}\n' if d.name else ''
        yield f'```{{toctree}}\n:hidden:\n:glob:\n{caption}\n{(d/"*").as_posix()}\n```'


def read_notebook(app, docname, source):
    path = app.env.doc2path(docname)
    if path.suffix != '.ipynb': return
    module = re.search(r'#\| *default_exp +([\w.]+)', path.read_text(encoding='utf-8'))
    symbols = {**vars(import_module(f'{cfg.lib_name}.{module[1] if module else "all"}')), 'show_doc': Doc}
    nb = read_nb(path)
    Pages()(nb)
    nb.metadata['language_info'] = {'name': 'python', 'pygments_lexer': 'ipython3'}
    nb.cells = [myst_cell(c, symbols) for c in nb.cells]
    if docname == 'index': nb.cells.append(mk_cell('\n\n'.join(contents()), 'markdown'))
    source[0] = nb2str(nb)


def mathml(self, node):
    "Formulas as MathML, which browsers draw without a script"
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):
    app.connect('source-read', read_notebook)
    app.add_html_math_renderer('mathml', (mathml, None), (mathml, None))
