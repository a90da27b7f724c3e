"""A notebook as MyST: what `nbdev_docs` would put into its page

Notebooks go through nbdev's own processors: directives are obeyed, exported code becomes `show_doc`, symbols in backticks
become links. The functions below turn the result from Quarto's dialect into MyST's. No cell runs: outputs are those stored in
the notebooks, and symbols are documented as the package has them.
"""
import ast, inspect, math, os, re, tokenize, yaml
from dataclasses import is_dataclass
from importlib import import_module
from functools import cache
from io import StringIO
from itertools import groupby
from pathlib import Path
from textwrap import dedent, wrap

from execnb.nbio import mk_cell, read_nb
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup
from nbdev.process import Processor
from nbdev.processors import FilterDefaults, add_show_docs, exec_show_docs

nbs = Path(__file__).resolve().parent
cfg = get_config(path=nbs.parent)
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


def docstring(sym):
    "Without the parameters, which have a table of their own; see `with_comments`"
    return (inspect.getdoc(sym) or '').split('Parameters:\n')[0].strip()


def parameters(
    f,                      # class or function
    has_annotations=False,  # keep them
):                          # dict: name → `inspect.Parameter`, without `self`; None if Python does not know
    empty = inspect.Parameter.empty
    try: params = {k: p for k, p in inspect.signature(f).parameters.items() if k != 'self'}
    except ValueError: return None
    shown = {k: p if p.default is empty else p.replace(default=Default(p.default)) for k, p in params.items()}
    return shown if has_annotations else {k: p.replace(annotation=empty) for k, p in shown.items()}


def call(f, name):
    "How `f` is called: its name and parameters; '' if Python does not know"
    params = parameters(f)
    return '' if params is None else name + str(inspect.Signature(params.values()))


def declared(f):
    "Parameters as they stand in the table: with their default, and their type where that is an annotation"
    params = {k: str(p) for k, p in (parameters(f, is_dataclass(f)) or {}).items()} if callable(f) else {}
    return {k: o if len(o) <= 32 else k for k, o in params.items()}


def members(cls, name, shown):
    "Targets and rows for the public methods and properties that `cls` defines, save those with a heading of their own"
    for key, o in vars(cls).items():
        f = getattr(o, 'fget', None) or getattr(o, '__func__', o)   # of a property, of a class method
        if key[0] == '_' or not inspect.isfunction(f) or f.__module__ != cls.__module__ or f'{name}.{key}' in shown: continue
        if not (about := docstring(f) or notes(f).get('return')): continue
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
    res += [re.sub(r'^(`[^`]+`)  +', r'* \1: ', docstring(sym), flags=re.M), '']     # aligned names are a list
    known = declared(f)
    rows = [('*returns*' if p == 'return' else f'`{known.get(p, p)}`', about) for p, about in notes(f).items() if p not in (None, 'self')]
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


def included(s, folder):
    "Text with the files that Quarto would include; their links, which begin elsewhere, go on working"
    def text(m):
        file = (folder/m[1]).resolve()
        return re.sub(r'\]\((?!\w+:|#)([^)\s]+)\)', lambda m: f']({os.path.relpath(file.parent/m[1], folder)})', file.read_text(encoding='utf-8'))
    return re.sub(r'^\{\{< include (\S+) >\}\}$', text, s, flags=re.M)


def myst_text(s):
    "Callouts, divisions, and links to symbols, as MyST writes them; private symbols have no link"
    def callout(m):
        kind, title = m.groups()
        return f':::{{admonition}} {title}\n:class: {kind}\n\n' if title else f':::{{{kind}}}\n'
    s = re.sub(r'^:{3,} *\{\.callout-(\w+).*?\}\n(?:#+ (.*)\n)?', callout, s, flags=re.M)
    s = re.sub(r'^(:{3,}) *\{\.([\w-]+)\}$', r'\1{container} \2', s, flags=re.M)
    site = re.escape(f'{cfg.doc_host}{cfg.doc_baseurl}/')
    s = re.sub(rf'\[(`[^`]+`)\]\({site}[^)]*[#.]_[^)]*\)', r'\1', s)
    s = re.sub(rf'{site}[^)#\s]*(#[^)\s]+)', r'\1', s)
    return re.sub(rf'(?<!\[)`({"|".join(constants())})`', lambda m: f'[{m[0]}](#{m[1].lower()})', s)


@cache
def constants():
    "Public names of `all` that are neither classes nor functions; nbdev makes no links to them"
    names = vars(import_module(f'{cfg.lib_name}.all'))
    return [o for o in names['__all__'] if isinstance(names[o], (tuple, dict, str, int))]


def with_constants(cells):
    "nbdev leaves exported constants out of a page: they follow as code"
    for c in cells:
        yield c
        names = re.findall(r'^([A-Z]\w+) = ', c.source, flags=re.M) if re.search(r'^#\| *export\b', c.source, flags=re.M) else []
        if not names: continue
        targets = ''.join(f'({o.lower()})=\n' for o in names)
        yield mk_cell(targets + '```python\n' + re.sub(r'^#\|.*\n', '', c.source, flags=re.M) + '\n```', 'markdown')


def shown_name(c):
    "`Learner.fit` for a cell `show_doc(Learner.fit)`"
    m = re.match(r'show_doc\(([\w.]+)', re.sub(r'^#\|.*\n?', '', c.source, flags=re.M))
    return m[1] if m else None


def all_names():
    "A table of what `from ... import *` brings, for the page of the module `all`"
    names, rows = vars(import_module(f'{cfg.lib_name}.all')), []
    for name in sorted(names['__all__'], key=str.lower):
        o, module = names[name], getattr(names[name], '__module__', '')
        about = ', '.join(map('`{}`'.format, o)) if name in constants() else next(iter(docstring(o).splitlines()), '')
        if name not in constants() and not module.startswith(cfg.lib_name): continue
        rows.append(f'| `{name}` | {about} | {module.split(".")[-1]} |')
    return lookup.linkify('\n'.join(['## All names', '', '{.names}', '| name | what it is | module |', '|---|---|---|', *rows]))


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
        said = [re.sub(r'<(\w+).*', r'\1', ''.join(o.data.get('text/plain', ''))) for o in c.get('outputs', []) if 'image/png' in o.get('data', {})]
        if said: c.metadata['mystnb'] = {'image': {'alt': '; '.join(said)}}
        hide = {'echo': 'remove-input', 'output': 'remove-output', 'include': 'remove-cell'}
        c.metadata['tags'] = [t for k, t in hide.items() if opts.get(k) == 'false'] + ['hide-input']*('code-fold' in opts)
    return c


def read_page(
    path,  # of a notebook
):         # the notebook as MyST-NB wants it
    "What nbdev makes of a notebook, in MyST's words"
    module = re.search(r'#\| *default_exp +([\w.]+)', path.read_text(encoding='utf-8'))
    symbols = vars(import_module(f'{cfg.lib_name}.{module[1] if module else "all"}'))
    nb = read_nb(path)
    nb.cells = list(with_constants(nb.cells))
    Pages()(nb)
    nb.metadata['language_info'] = {'name': 'python', 'pygments_lexer': 'ipython3'}
    shown = {shown_name(c) for c in nb.cells}
    nb.cells = [myst_cell(c, symbols, shown) for c in nb.cells]
    if module and module[1] == 'all': nb.cells.append(mk_cell(myst_text(all_names()), 'markdown'))
    return nb
