"""The docs site: `make docs`, then open `_docs/html/index.html`.

Sphinx reads every notebook through nbdev's own processors, so a page holds what `nbdev_docs` puts in it: directives
are obeyed, exported code becomes `show_doc`, symbols in backticks become links. The functions below turn the result
from Quarto's dialect into MyST's. No cell runs: outputs are those stored in the notebooks, and symbols are documented
as the package has them.
"""
import ast, inspect, math, re, sys, tokenize, yaml
from dataclasses import is_dataclass
from importlib import import_module
from io import StringIO
from itertools import groupby
from pathlib import Path
from textwrap import dedent, wrap

nbs = Path(__file__).resolve().parent
sys.path.insert(0, str(nbs.parent))

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from execnb.nbio import mk_cell, nb2str, read_nb
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup
from nbdev.process import Processor
from nbdev.processors import FilterDefaults, add_show_docs, exec_show_docs

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


def notes(
    sym,  # class or function
):        # dict: name of a parameter, or 'return' → text
    "The comments beside the parameters, and beside the end of the signature; beside the fields of a dataclass"
    try: src = dedent(inspect.getsource(sym.__init__ if inspect.isclass(sym) and not is_dataclass(sym) else sym))
    except (OSError, TypeError): return {}      # not written in Python
    node = ast.parse(src).body[0]
    if isinstance(node, ast.ClassDef): at, end, rest = {o.lineno: o.target.id for o in node.body if isinstance(o, ast.AnnAssign)}, math.inf, None
    else:
        at, end, rest = {o.lineno: o.arg for o in ast.walk(node.args) if isinstance(o, ast.arg)}, node.body[0].lineno, 'return'
        if set(at) == {node.lineno}: at = {}    # on one line there is place for the result only
    comments = [o for o in tokenize.generate_tokens(StringIO(src).readline) if o.type == tokenize.COMMENT and o.start[0] < end]
    return {at.get(o.start[0], rest): o.string.lstrip('# ').replace('|', r'\|') for o in comments}


class Default(str):
    "A default value, as it stands in a signature"
    __repr__ = str.__str__
    def __new__(cls, o): return super().__new__(cls, '...' if o is ... else getattr(o, '__name__', None) or repr(o))


def call(f, name):
    "How `f` is called: its name and parameters, without `self`; '' if Python does not know"
    empty = inspect.Parameter.empty
    try: params = [p.replace(annotation=empty) for p in inspect.signature(f).parameters.values() if p.name != 'self']
    except ValueError: return ''
    return name + str(inspect.Signature([p if p.default is empty else p.replace(default=Default(p.default)) for p in params]))


def members(cls, name, shown):
    "Targets and rows for the public methods and properties that `cls` defines, save those with a heading of their own"
    for key, o in vars(cls).items():
        f = getattr(o, 'fget', None) or getattr(o, '__func__', o)   # of a property, of a class method
        if key[0] == '_' or not inspect.isfunction(f) or f.__module__ != cls.__module__ or f'{name}.{key}' in shown: continue
        if not (about := inspect.getdoc(f) or notes(f).get('return')): continue
        yield f'({name.lower()}.{key})=', (f'`.{key if isinstance(o, property) else call(f, key)}`', about.splitlines()[0])


def describe(
    sym,    # class, function or property
    name,   # as it is called: `Learner.fit`
    shown,  # names of all symbols that the page describes
):          # str
    "What `show_doc` shows: heading, source link, signature, docstring, parameters, members"
    f = getattr(sym, 'fget', sym)
    res = [f'({name.lower()})=', f'### {name}', '']
    if src := lookup.code(name): res += [f'[source]({src}){{.source-link}}', '']
    if f is sym and (sig := call(f, name)): res += ['```python', *wrap(sig, 96, subsequent_indent=' '*4), '```', '']
    res += [re.sub(r'^(`[^`]+`)  +', r'* \1: ', inspect.getdoc(sym) or '', flags=re.M), '']     # aligned names are a list
    rows = [('*returns*' if p == 'return' else f'`{p}`', about) for p, about in notes(f).items() if p not in (None, 'self')]
    if inspect.isclass(sym):
        for target, row in members(sym, name, shown):
            res.append(target)
            rows.append(row)
    if rows: res += ['{.parameters}', '| | |', '|---|---|', *(f'| {p} | {about} |' for p, about in rows)]
    return lookup.linkify('\n'.join(res)) + '\n'


class InOrder(Processor):
    "Puts what one cell defines in the order of that cell; nbdev adds it in reverse"
    def begin(self):
        runs = groupby(self.nb.cells, key=lambda c: getattr(c, 'has_sd', False))
        self.nb.cells = [c for added, run in runs for c in (list(run)[::-1] if added else run)]


class Pages(FilterDefaults):
    "nbdev's processors, without the one that runs cells"
    def procs(self):
        procs = [o for o in self.base_procs() if o is not exec_show_docs]
        procs.insert(procs.index(add_show_docs) + 1, InOrder)
        return procs


def myst_text(s):
    "Callouts, and links to symbols, as MyST writes them; private symbols have no link"
    def callout(m):
        kind, title = m.groups()
        return f':::{{admonition}} {title}\n:class: {kind}\n\n' if title else f':::{{{kind}}}\n'
    s = re.sub(r'^:{3,} *\{\.callout-(\w+).*?\}\n(?:#+ (.*)\n)?', callout, s, flags=re.M)
    site = re.escape(f'{cfg.doc_host}{cfg.doc_baseurl}/')
    s = re.sub(rf'\[(`[^`]+`)\]\({site}[^)]*[#.]_[^)]*\)', r'\1', s)
    return re.sub(rf'{site}[^)#\s]*(#[^)\s]+)', r'\1', s)


def shown_name(c):
    "`Learner.fit` for a cell `show_doc(Learner.fit)`"
    m = re.match(r'show_doc\(([\w.]+)', re.sub(r'^#\|.*\n?', '', c.source, flags=re.M))
    return m[1] if m else None


def myst_cell(c, symbols, shown):
    "A cell that nbdev has processed, as MyST-NB wants it"
    if c.cell_type == 'raw':
        fm = next(yaml.safe_load_all(c.source))
        lead = f"\n\n{{.lead}}\n{fm['description']}" if 'description' in fm else ''
        return mk_cell(f"# {fm.get('title', '')}{lead}", 'markdown')
    if c.cell_type == 'markdown': c.source = myst_text(c.source)
    if c.cell_type == 'code':
        opts = dict(re.findall(r'^#\| *([\w-]+): *(.*?)\s*$', c.source, flags=re.M))
        c.source = re.sub(r'^#\|.*\n?', '', c.source, flags=re.M)
        if name := shown_name(c): return mk_cell(myst_text(describe(eval(name, symbols), name, shown)), 'markdown')
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
    symbols = vars(import_module(f'{cfg.lib_name}.{module[1] if module else "all"}'))
    nb = read_nb(path)
    Pages()(nb)
    nb.metadata['language_info'] = {'name': 'python', 'pygments_lexer': 'ipython3'}
    shown = {shown_name(c) for c in nb.cells}
    nb.cells = [myst_cell(c, symbols, shown) for c in nb.cells]
    if docname == 'index': nb.cells.append(mk_cell('\n\n'.join(contents()), 'markdown'))
    source[0] = nb2str(nb)


def mathml(self, node):
    "Formulas as MathML, which browsers draw without a script"
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app):
    app.connect('source-read', read_notebook)
    app.add_html_math_renderer('mathml', (mathml, None), (mathml, None))
