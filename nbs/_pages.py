"""Convert notebooks to MyST pages, as `nbdev_docs` would for Quarto

Notebooks go through nbdev's processors, which obey directives, replace exported code by `show_doc`, and link symbols in
backticks. The functions below turn the result from Quarto's dialect into that of MyST. No cell runs: outputs are those
stored in the notebooks, and the documentation of symbols is that of the package.
"""
import ast, inspect, os, re, tokenize, yaml
from base64 import b64decode
from dataclasses import is_dataclass
from importlib import import_module
from functools import cache
from io import BytesIO, StringIO
from itertools import chain, groupby
from pathlib import Path
from textwrap import dedent, wrap

from execnb.nbio import mk_cell, read_nb
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup
from nbdev.process import Processor
from nbdev.processors import FilterDefaults, add_show_docs, exec_show_docs

from _reference import in_order, shown_name
from trainer_nb.base.text import comments

nbs = Path(__file__).resolve().parent
cfg = get_config(path=nbs.parent)
lookup = NbdevLookup()


def notes(
    sym,  # class, function or property
):        # dict: name of a parameter, or 'returns' or 'raises' → text
    "Return the comments beside the parameters and the end of the signature, or beside the fields of a dataclass"
    f = getattr(sym, 'fget', sym)
    if inspect.isclass(f) and not is_dataclass(f): f = f.__init__
    if not is_dataclass(f): rows = comments(f) if inspect.isfunction(f) else ()
    else: rows = field_comments(f)
    return {name: ' '.join(about) for name, about in rows}


def field_comments(
    cls,  # dataclass
):        # list of (name, lines of the comment)
    "Return the comments beside the fields"
    source = dedent(inspect.getsource(cls))
    at = {o.lineno: o.target.id for o in ast.parse(source).body[0].body if isinstance(o, ast.AnnAssign)}
    rows, before = [], (0, 0)       # line and column of the comment before
    for o in tokenize.generate_tokens(StringIO(source).readline):
        if o.type != tokenize.COMMENT: continue
        if name := at.get(o.start[0]): rows.append((name, [o.string.lstrip('# ')]))
        elif rows and o.start == (before[0] + 1, before[1]): rows[-1][1].append(o.string.lstrip('# '))
        else: continue
        before = o.start
    return rows


class Default(str):
    "A default value, as a signature shows it"
    __repr__ = str.__str__
    def __new__(cls, o): return super().__new__(cls, '...' if o is ... else getattr(o, '__name__', None) or repr(o))


def docstring(sym):
    "Return a symbol's own docstring, without the parameters of `with_comments`, which have their own table"
    return inspect.cleandoc(sym.__doc__ or '').split('Parameters:\n')[0].strip()


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
    "Return the signature of `f` with its name; '' if Python does not know it"
    params = parameters(f)
    if params is None: return ''
    if name.startswith('Learner.'): params.pop('learn', None)       # a verb of another wing
    return name + str(inspect.Signature(params.values()))


def declared(f):
    "Return the parameters for the table, with their defaults and annotated types"
    params = {k: str(p) for k, p in (parameters(f, is_dataclass(f)) or {}).items()} if callable(f) else {}
    return {k: o if len(o) <= 32 else k for k, o in params.items()}


def members(cls, name, shown):
    "Yield names, symbols, shapes and words of the public methods and properties of `cls`"
    parts = [o for o in reversed(cls.__mro__) if o is cls or o.__name__[0] == '_' and o.__module__ == cls.__module__]
    for key, o in {k: v for part in parts for k, v in vars(part).items()}.items():
        f = getattr(o, 'fget', None) or getattr(o, '__func__', o)   # of a property, of a class method
        is_own = inspect.isfunction(f) and (f.__module__ == cls.__module__ or f'{name}.{key}' in shown)
        if key[0] == '_' or not is_own: continue
        if about := docstring(f) or notes(f).get('returns'):
            yield key, f, key if isinstance(o, property) else call(f, key), about.splitlines()[0]


WIDE = 60       # a method with a longer signature has a part of the page, not a line of a table

def describe(
    sym,    # class, function or property
    name,   # its name, such as `Learner.fit`
    shown,  # names of all symbols that have a heading on the page
    title='',   # the heading; default: `name`
):          # str
    "Write what `show_doc` shows: heading, source link, signature, docstring, parameters, members"
    f = getattr(sym, 'fget', sym)
    res = [f'({name.lower()})=', f'### {title or name}', '']
    if src := lookup.code(name): res += [f'[source]({src}){{.source-link}}', '']
    if f is sym and (sig := call(f, title or name)):
        res += ['```python', *wrap(sig, 96, subsequent_indent=' '*4), '```', '']
    res += [re.sub(r'^(`[^`]+`)  +', r'* \1: ', docstring(sym), flags=re.M), '']     # aligned names are a list
    known = declared(f)
    def shape(p): return known.get(p.lstrip('*'), p)
    rows = [(f'*{names}*' if names in ('returns', 'raises') else ', '.join(f'`{shape(p)}`' for p in names.split(', ')),
             about) for names, about in notes(f).items()]
    wide = []
    for key, o, shape, about in members(sym, name, shown) if inspect.isclass(sym) else ():
        label = f'{name.lower()}.{key}'
        if f'{name}.{key}' in shown: rows.append((f'[`.{key}`](#{label})', about))
        elif len(shape) > WIDE: wide.append(describe(o, f'{name}.{key}', shown))
        else:
            res.append(f'({label})=')
            rows.append((f'`.{shape}`', about))
    cells = (' | '.join(o.replace('|', r'\|') for o in row) for row in rows)
    if rows: res += ['{.parameters}', '| | |', '|---|---|', *(f'| {o} |' for o in cells)]
    text = lookup.linkify('\n'.join(res))
    for p in known: text = re.sub(rf'\[(`{p}`)\]\([^)]*\)', r'\1', text)      # a parameter, not a function of its name
    return '\n\n'.join([text, *wide]) + '\n'


class InOrder(Processor):
    "Put what one cell defines in the order of that cell; nbdev adds it in reverse"
    def begin(self):
        runs = groupby(self.nb.cells, key=lambda c: getattr(c, 'has_sd', False))
        self.nb.cells = list(chain.from_iterable(list(run)[::-1] if added else list(run) for added, run in runs))


class Pages(FilterDefaults):
    "nbdev's processors, without the one that runs cells"
    def procs(self):
        procs = [o for o in self.base_procs() if o is not exec_show_docs]
        procs.insert(procs.index(add_show_docs) + 1, InOrder)
        return procs


def included(s, folder):
    "Include files as Quarto would, with links relative to `folder`"
    def text(m):
        file = (folder/m[1]).resolve()
        def link(m): return f']({os.path.relpath(file.parent/m[1], folder)})'
        return re.sub(r'\]\((?!\w+:|#)([^)\s]+)\)', link, file.read_text(encoding='utf-8'))
    return re.sub(r'^\{\{< include (\S+) >\}\}$', text, s, flags=re.M)


def myst_text(s):
    "Write callouts, divisions and links to symbols as MyST does; private symbols get no link, and code stays as it is"
    parts = re.split(r'(^````none$.*?^````$)', s, flags=re.M | re.S)
    return ''.join(o if i % 2 else _myst_text(o) for i, o in enumerate(parts))


def _myst_text(s):
    def callout(m):
        kind, title = m.groups()
        return f':::{{admonition}} {title}\n:class: {kind}\n\n' if title else f':::{{{kind}}}\n'
    s = re.sub(r'^:{3,} *\{\.callout-(\w+).*?\}\n(?:#+ (.*)\n)?', callout, s, flags=re.M)
    s = re.sub(r'^(:{3,}) *\{\.([\w-]+)\}$', r'\1{container} \2', s, flags=re.M)
    s = re.sub(r'(!\[[^\]]*\]\((?:\.\./)*images/[^)]*\))(?!\{)', r'\1{.chart}', s)      # screenshots on white
    site = re.escape(f'{cfg.doc_host}{cfg.doc_baseurl}/')
    s = re.sub(rf'\[(`[^`]+`)\]\({site}[^)]*[#.]_[^)]*\)', r'\1', s)
    s = re.sub(rf'{site}[^)#\s]*(#[^)\s]+)', r'\1', s)
    s = re.sub(rf'(?<!\[)`({"|".join(constants())})`', lambda m: f'[{m[0]}](#{m[1].lower()})', s)
    link, other = r'\[(?:`[^`]+`)\]\([^)]*\)', r'(?:[^\[\]`]|`[^`]*`)*'     # links in a link, made of its words
    def flat(m): return re.sub(r'\[(`[^`]+`)\]\([^)]*\)', r'\1', m[1]) + m[2]
    return re.sub(rf'(?<![!`])(\[(?:{other}{link})+{other})(\]\([^)]*\))', flat, s)


@cache
def constants():
    "Return the public constants of `all`, which nbdev does not link"
    names = vars(import_module(f'{cfg.lib_name}.all'))
    return [o for o in names['__all__'] if isinstance(names[o], (tuple, dict, str, int))]


def with_constants(cells):
    "Add exported constants as code, since nbdev leaves them out of a page"
    for c in cells:
        yield c
        is_export = re.search(r'^#\| *export\b', c.source, flags=re.M)
        names = re.findall(r'^([A-Z]\w+) = ', c.source, flags=re.M) if is_export else []
        if not names: continue
        targets, code = ''.join(f'({o.lower()})=\n' for o in names), re.sub(r'^#\|.*\n', '', c.source, flags=re.M)
        yield mk_cell(f'{targets}```python\n{code}\n```', 'markdown')


WORDS = {       # of module names, where they are not just words with underscores
    'all': 'All names', 'amp': 'Mixed precision', 'batch': 'Show a batch',
    'comparison': 'Compare runs', 'ema': 'Weight averages', 'engine': 'Slurm, Ray and other engines',
    'fsdp': 'FSDP', 'lr_find': 'Learning-rate finder',
    'nan_guard': 'NaN guard', 'optim': 'Optimizers', 'plan': 'State and plan',
    'sources': 'What can be compared', 'start': 'Start a run',
    'table': 'Table of runs', 'torch_private': 'Private parts of torch',
}


def in_words(name):
    "Turn the name of a module into a title"
    if not re.fullmatch('[a-z_]+', name): return name
    return WORDS.get(name) or name.replace('_', ' ').capitalize()


def is_check(code):
    "Does code only assert something?"
    try: body = ast.parse(code).body
    except SyntaxError: return False    # a magic
    return bool(body) and all(isinstance(o, ast.Assert) for o in body)


def is_chart(png):  # base64
    "Is a picture drawn on white, so that it can be turned dark? Photographs cannot"
    from PIL import Image
    image = Image.open(BytesIO(b64decode(png))).convert('L')
    corners = [image.getpixel((x, y)) for x in (0, image.width - 1) for y in (0, image.height - 1)]
    return min(corners) > 250 and sum(image.histogram()[225:]) > image.width*image.height/4


def source_of(sym):
    "Show the source as exported, which a notebook has in the same words, folded; '' if Python does not know it"
    try: code = dedent(inspect.getsource(getattr(sym, 'fget', sym))).rstrip()
    except (OSError, TypeError): return ''
    return f'\n<details class="source"><summary>Source</summary>\n\n````none\n{code}\n````\n\n</details>\n'


def last_words(
    text,  # Markdown
):         # str: its last sentence without markup, or '' after a list, a table or code
    paragraph = text.strip().split('\n\n')[-1]
    if re.match(r'[-*|#`:<!]|\d+\. ', paragraph): return ''
    plain = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', ' '.join(paragraph.split()))
    return re.split(r'(?<=[.?!]) +', re.sub(r'[`*\\]', '', plain))[-1].rstrip(':.')


def myst_cell(
    c,          # a cell that nbdev has processed
    symbols,    # dict: name → what it is in the module of the page
    shown,      # names that the page describes
    module,     # of the page; None for a lesson
    words='',   # the sentence before the cell, which describes a picture that does not describe itself
):
    "Convert a cell for MyST-NB"
    if c.cell_type == 'raw':
        fm = next(yaml.safe_load_all(c.source))
        lead = f"\n\n{{.lead}}\n{fm['description']}" if 'description' in fm else ''
        name = fm.get('title', '')
        return mk_cell(f'# {in_words(name) if module else name}{lead}', 'markdown')
    if c.cell_type == 'markdown': c.source = myst_text(c.source)
    if c.cell_type == 'code':
        opts = dict(re.findall(r'^#\| *([\w-]+): *(.*?)\s*$', c.source, flags=re.M))
        c.source = re.sub(r'^#\|.*\n?', '', c.source, flags=re.M)
        if name := shown_name(c):
            text = myst_text(describe(eval(name, symbols), name, shown, c.get('title', '')))
            if name.rpartition('.')[0] not in shown: text += source_of(eval(name, symbols))     # else its class has it
            return mk_cell(text, 'markdown')
        images = [o.data for o in c.get('outputs', []) if 'image/png' in o.get('data', {})]
        axes = re.findall(r"xlabel='([^']*)'.*?ylabel='([^']*)'", c.source, flags=re.S)
        drawn = ', '.join(f'{y} by {x}' for x, y in axes) or words
        texts = [re.sub(r'<(\w+).*', lambda m: drawn or m[1], ''.join(o.get('text/plain', ''))) for o in images]
        if texts:
            options = {'alt': '; '.join(texts)}
            if all(is_chart(o['image/png']) for o in images): options['classes'] = 'chart'
            c.metadata['mystnb'] = {'image': options}
        hide = {'echo': 'remove-input', 'output': 'remove-output', 'include': 'remove-cell'}
        c.metadata['tags'] = [t for k, t in hide.items() if opts.get(k) == 'false']
        if 'code-fold' in opts: c.metadata['tags'].append('hide-input')
        if is_check(c.source):
            c.metadata['tags'].append('hide-input')
            c.metadata['mystnb'] = {'code_prompt_show': 'Check', 'code_prompt_hide': 'Check'}
    return c


def read_page(
    path,       # of a notebook
    public=(),  # the public names of its module: `_names.Name`
):              # the notebook for MyST-NB
    "Process a notebook with nbdev, and convert it to MyST; what is public comes first"
    module = re.search(r'#\| *default_exp +([\w.]+)', path.read_text(encoding='utf-8'))
    symbols = vars(import_module(f'{cfg.lib_name}.{module[1] if module else "all"}'))
    nb = read_nb(path)
    nb.cells = list(with_constants(nb.cells))
    Pages()(nb)
    nb.metadata['language_info'] = {'name': 'python', 'pygments_lexer': 'ipython3'}
    if public:
        front = next(c for c in read_nb(nbs/'index.ipynb').cells if c.cell_type == 'code')
        nb.cells = in_order(nb.cells, public, symbols, f'{cfg.lib_name}.{module[1]}', front)
    shown, words = {shown_name(c) for c in nb.cells}, ''
    for i, c in enumerate(nb.cells):
        if c.cell_type == 'markdown': words = last_words(c.source)
        nb.cells[i] = myst_cell(c, symbols, shown, module, words)
    return nb
