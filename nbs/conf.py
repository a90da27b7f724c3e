"""The docs site: `sphinx-build -M html nbs _docs -W`, then open `_docs/html/index.html`.

Sphinx reads every notebook through nbdev's own processors, so a page holds what `nbdev_docs` puts in it:
directives are obeyed, exported code becomes `show_doc`, symbols in backticks become links. The functions
below turn the result from Quarto's dialect into MyST's. Outputs are those stored in the notebooks.
"""
import inspect, re, sys, yaml
from pathlib import Path

nbs = Path(__file__).resolve().parent
sys.path.insert(0, str(nbs.parent))

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from execnb.nbio import mk_cell, nb2str, read_nb
from nbdev import showdoc
from nbdev.config import get_config
from nbdev.processors import FilterDefaults

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
nb_ipywidgets_js = {'require.js': {}, 'embed-amd.js': {}}   # in _static, so that widgets need no CDN
myst_enable_extensions = ['attrs_block', 'attrs_inline', 'colon_fence', 'dollarmath']
myst_heading_anchors = 3


class Table(showdoc.BasicMarkdownRenderer):
    "What `show_doc` shows: heading, source link, signature, docstring, and a table of the parameters"
    def _repr_markdown_(self):
        docs, empty = self.dm.dm, inspect.Parameter.empty
        name = lambda o: getattr(o, '__name__', None) or repr(o)
        code = lambda o: f'`{o}`'.replace('|', r'\|') if o else ''
        text = lambda o: (o or '').replace('\n', ' ').replace('|', r'\|')
        sig, rows = [], []
        for p in (self.sig.parameters.values() if self.sig else ()):
            if p.name in ('self', 'cls'): continue
            default = '' if p.default is empty else name(p.default)
            star = {p.VAR_POSITIONAL: '*', p.VAR_KEYWORD: '**'}.get(p.kind, '')
            anno = p.annotation if isinstance(p.annotation, str) else docs.get(p.name, {}).get('anno', p.annotation)
            anno = '' if p.annotation is empty else anno if isinstance(anno, str) else inspect.formatannotation(anno)
            sig.append(star + p.name + (default and '='+default))
            rows.append([code(star+p.name), code(anno), code(default), text(docs.get(p.name, {}).get('docment'))])
        ret = docs.get('return', {})
        if ret.get('anno', empty) not in (empty, None, 'None') or ret.get('docment'):
            anno = ret['anno'] if isinstance(ret['anno'], str) else '' if ret['anno'] is empty else inspect.formatannotation(ret['anno'])
            rows.append(['*returns*', code(anno), '', text(ret.get('docment'))])
        res = [f'({self.nm.lower()})=', '#'*self.title_level + f' {self.nm}', '']
        src = showdoc.NbdevLookup().code(self.fn)
        if src: res += [f'[source]({src}){{.source-link}}', '']
        if self.sig: res += ['```python', f'{self.nm}({", ".join(sig)})', '```', '']
        res += [self.docs, '']
        if any(r[1] or r[3] for r in rows):
            res += ['{.parameters}', '| | Type | Default | |', '|---|---|---|---|'] + [f'| {" | ".join(r)} |' for r in rows]
        return '\n'.join(res) + '\n'

showdoc.BasicMarkdownRenderer = Table


def myst_text(s):
    "Callouts, and links to symbols, as MyST writes them"
    def callout(m):
        kind, attrs, title = m.groups()
        if not title: return f':::{{{kind}}}\n'
        return f':::{{admonition}} {title}\n:class: {kind}\n\n'
    s = re.sub(r'^:{3,} *\{\.callout-(\w+)(.*?)\}\n(?:#+ (.*)\n)?', callout, s, flags=re.M)
    return re.sub(re.escape(f'{cfg.doc_host}{cfg.doc_baseurl}/') + r'[^)#\s]*(#[^)\s]+)', r'\1', s)


def myst_cell(c):
    "A cell that nbdev has processed, as MyST-NB wants it"
    if c.cell_type == 'raw':
        fm = next(yaml.safe_load_all(c.source))
        lead = f"\n\n{{.lead}}\n{fm['description']}" if 'description' in fm else ''
        return mk_cell(f"# {fm.get('title', '')}{lead}", 'markdown')
    if c.cell_type == 'markdown': c.source = myst_text(c.source)
    if c.cell_type == 'code':
        opts = dict(re.findall(r'^#\| *([\w-]+): *(.*?)\s*$', c.source, flags=re.M))
        c.source = re.sub(r'^#\|.*\n?', '', c.source, flags=re.M)
        if c.source.startswith('show_doc('): return mk_cell(myst_text(''.join(c.outputs[0].data['text/markdown'])), 'markdown')
        hide = {'echo': 'remove-input', 'output': 'remove-output', 'include': 'remove-cell'}
        c.metadata['tags'] = [t for k,t in hide.items() if opts.get(k) == 'false'] + ['hide-input']*('code-fold' in opts)
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
    nb = read_nb(path)
    FilterDefaults()(nb)
    nb.metadata['language_info'] = {'name': 'python', 'pygments_lexer': 'ipython3'}
    nb.cells = [myst_cell(c) for c in nb.cells]
    if docname == 'index': nb.cells.append(mk_cell('\n\n'.join(contents()), 'markdown'))
    source[0] = nb2str(nb)


def mathml(self, node):
    "Formulas as MathML, which browsers draw without a script"
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):
    app.connect('source-read', read_notebook)
    app.add_html_math_renderer('mathml', (mathml, None), (mathml, None))
