"""Convert notebooks to MyST pages, and write lists of names and of pages

No cell runs: outputs are those stored in the notebooks. An exported cell becomes the documentation of its public names.
Nothing here is a list of names: a page in `nbs/api` says which modules it covers, `::: {.names of="show"}`, and gets
their public names as they are defined, after those it wants `first`; a folder covers its modules that no page covers by
name. `<!-- search: k-fold, ensemble -->` below a heading leads a search there.
"""
import ast, inspect, os, re
from base64 import b64decode
from collections import namedtuple
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from io import BytesIO
from pathlib import Path
from textwrap import dedent, wrap

from execnb.nbio import mk_cell, read_nb
from nbdev.config import get_config
from nbdev.doclinks import NbdevLookup

from trainer_nb.base.text import comments

nbs = Path(__file__).resolve().parent
cfg = get_config(path=nbs.parent)
site = f'{cfg.doc_host}{cfg.doc_baseurl}/'
lookup = NbdevLookup()
everything = import_module(f'{cfg.lib_name}.all')
Name = namedtuple('Name', 'shown label symbol module')      # 'learn.fit', 'hooked.fit', the function, 'loop.learner'


# Pages

@cache
def texts():    # dict: page → (its suffix, its Markdown)
    "Read the Markdown of all pages"
    found = {}
    for path in sorted(nbs.rglob('[!_.]*.*')):
        name = path.relative_to(nbs).with_suffix('')
        if path.suffix not in ('.ipynb', '.qmd') or any(part[0] in '._' for part in name.parts): continue
        if path.suffix == '.qmd': text = path.read_text(encoding='utf-8')
        else: text = '\n\n'.join(c.source for c in read_nb(path).cells
                                 if c.cell_type == 'markdown' or c.source.startswith('#| default_exp'))
        found[name.as_posix()] = path.suffix, text
    return found


def matching(patterns):     # 'howto/* index' → list of pages
    return [o for o in texts() if any(fnmatch(o, pattern) for pattern in patterns.split())]


@cache
def homes():    # dict: module → its page
    found = {page: re.search(r'^#\| default_exp +(\S+)', text, flags=re.M) for page, (_, text) in texts().items()}
    return {m[1]: page for page, m in found.items() if m}


# Names

@cache
def constants():
    "List the public constants, which nbdev does not link"
    return [o for o in everything.__all__ if isinstance(getattr(everything, o), (tuple, dict, str, int))]


@cache
def public():   # list of `Name`
    "List what `all` has, without the names of torch, and the verbs of `Learner`"
    found = []
    for name in dir(everything.Learner):
        f = getattr(everything.Learner, name)
        f = getattr(f, 'fget', f)
        if name[0] != '_' and about(name, f):
            found.append(Name(f'learn.{name}', f.__qualname__.lower(), f, f.__module__.partition('.')[2]))
    for module in homes().keys() - {'all'}:
        home = f'{cfg.lib_name}.{module}'
        for name in import_module(home).__all__:
            o = getattr(everything, name, None)
            # a class, or one that it extends, as the `Learner` that has all verbs
            if o is None or home not in [getattr(c, '__module__', home) for c in getattr(o, '__mro__', [o])]: continue
            found.append(Name(name, name.lower(), o, module))
    return sorted(found, key=lambda o: ('.' not in o.shown, homes()[o.module], o.shown.lower()))


@cache
def asked():    # dict: page → the modules and folders that it covers, the names that it wants first
    pattern = re.compile(r'^::: \{\.names of="([^"]*)"(?: first="([^"]*)")?\}', flags=re.M)
    return {page: [(o or '').split() for o in pattern.search(texts()[page][1]).groups()] for page in matching('api/*')}


def line(o):
    "Return where a name is defined; constants come first"
    return 0 if o.shown in constants() else inspect.findsource(o.symbol)[1]


def covers(name, module): return f'{module}.'.startswith(f'{name}.')


def task_of(module):
    "Return the API page that covers a module: one that names it, else one that names its folder"
    found = [(len(o), page) for page, (covered, _) in asked().items() for o in covered if covers(o, module)]
    if not found: raise ValueError(f'No page in nbs/api covers the module {module}: name it there, or its folder.')
    return max(found)[1]


def names_of(page, with_guests=False):
    "List the names of an API page: those that it wants first, perhaps of other pages, then by modules"
    modules, first = asked()[page]
    def place(o):
        found = (i for i, name in enumerate(modules) if covers(name, o.module))
        return first.index(o.shown) if o.shown in first else len(first), next(found, 0), '.' in o.shown, line(o)
    return sorted((o for o in public() if task_of(o.module) == page or with_guests and o.shown in first), key=place)


def names_on(page):     # in the order of their API page; classes and functions come before other verbs
    def place(o):
        first = asked()[task_of(o.module)][1]
        return first.index(o.shown) if o.shown in first else len(first), '.' in o.shown, line(o)
    return sorted((o for o in public() if homes()[o.module] == page), key=place)


def docstring(o):
    "Return a symbol's own docstring, without the parameters of `with_comments`, which have their own table"
    return inspect.cleandoc(o.__doc__ or '').split('Parameters:\n')[0].strip()


def notes(o):   # dict: name of a parameter, or 'returns' or 'raises' → text
    "Return the comments beside the parameters and the end of the signature"
    f = o.__init__ if inspect.isclass(o) else o
    return {name: ' '.join(words) for name, words in comments(f)} if inspect.isfunction(f) else {}


def about(name, o):
    "Describe a symbol in one line"
    if name in constants(): return ', '.join(map('`{}`'.format, o))
    line = (docstring(o) or notes(o).get('returns') or '').split('\n')[0]
    return re.sub(r'; raises .*|\. Define the methods that you need:$', '', line)     # a page has the errors


def table(kind, rows):
    cells = (' | '.join(o.replace('|', r'\|') for o in row) for row in rows)
    return '\n'.join([f'{{.{kind}}}', '| | |', '|---|---|', *(f'| {o} |' for o in cells)])


def names_table(names):
    return table('names', [(f'[`{o.shown}`](#{o.label})', lookup.linkify(about(o.shown, o.symbol))) for o in names])


def all_names(): return '\n\n'.join(f'## {first_lines(o)[0]}\n\n{names_table(names_of(o))}' for o in asked())


# What pages say of other pages

TITLES = {'all': 'All names', 'lr_find': 'Learning-rate finder', 'engine': 'Slurm, Ray and other engines'}


def first_lines(page):  # (title, lead)
    "Read what a page begins with"
    name, lead = re.match(r'# (.*)\n+(?:> )?(.*)', texts()[page][1]).groups()
    is_module = page in homes().values()
    return TITLES.get(name, name.replace('_', ' ').capitalize()) if is_module else name, lead


def linked(pages, folder):
    "List pages with their leads, and put them below this one in the sidebar"
    lines = ['```{toctree}', ':hidden:', '', *(f'/{o}' for o in pages), '```', '']
    for page in pages:
        title, lead = first_lines(page)
        lines.append(f'- [{title}]({os.path.relpath(f"/{page}{texts()[page][0]}", f"/{folder}")}): {lead}')
    return '\n'.join(lines)


def filled(s, page):
    "Write what divisions such as `::: {.pages of=...}` ask for"
    folder = page.rpartition('/')[0]
    def division(m):
        kind, wanted, left_out = m.groups()
        if kind == 'names' and wanted is None: return all_names()
        if kind == 'names':
            pages = sorted({homes()[o.module] for o in names_of(page)})
            return f'{names_table(names_of(page, with_guests=True))}\n\n## Pages\n\n{linked(pages, folder)}'
        if kind == 'inner': found = [o for module, o in homes().items() if module != 'all' and not names_on(o)]
        else: found = [o for o in matching(wanted) if o not in (page, *matching(left_out or ''))]
        return linked(found, folder)
    wants = r'^::: \{\.(pages|names|inner)(?: of="([^"]*)")?(?: but="([^"]*)")?(?: first="[^"]*")?\}\n:::$'
    return re.sub(wants, division, s, flags=re.M)


@cache
def terms():    # list of (page, section, term)
    "List what the `search` comments of all pages say"
    found = []
    for page, (_, text) in texts().items():
        section = ''
        for heading, words in re.findall(r'^##+ (.*)|^<!-- search: (.*) -->', text, flags=re.M):
            if heading: section = re.sub(r'[^\w -]', '', heading).lower().replace(' ', '-')
            else: found += [(page, section, o) for o in words.split(', ')]
    return found


def entries(page):  # list of (entry, id on the page, in the general index?, first in the search?)
    "List what leads to a page: what its `search` comments say, and its public names, as they are typed and in words"
    found = [(term, section, True, True) for where, section, term in terms() if where == page]
    elsewhere = {term.lower() for where, _, term in terms() if where != page}
    for o in names_on(page):
        name, target = o.shown.removeprefix('learn.'), re.sub(r'[^a-z0-9]+', '-', o.label)
        words = re.sub(r'(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_', ' ', name).lower()
        for entry in dict.fromkeys([o.shown, name, words]):
            found.append((entry, target, entry == o.shown, entry.lower() not in elsewhere))
    return found


# What a symbol is

def signature(f, title):
    "Return the signature of `f` with its title and without annotations; '' if Python does not know it"
    empty, params = inspect.Parameter.empty, []
    try: known = inspect.signature(f).parameters
    except ValueError: return ''
    for k, p in known.items():
        if k == 'self' or k == 'learn' and title.startswith('Learner.'): continue       # a verb of another wing
        default = getattr(p.default, '__name__', None) or ('...' if p.default is ... else repr(p.default))
        words = type('Words', (str,), {'__repr__': str.__str__})(default)
        params.append(p.replace(annotation=empty, default=empty if p.default is empty else words))
    return title + str(inspect.Signature(params))


def described(o, name, level='###'):
    "Write heading, link to the source, signature, docstring, parameters and members of a symbol"
    f = getattr(o, 'fget', o)
    title = next((x.shown.replace('learn.', 'Learner.') for x in public() if x.symbol is f), name)
    res = [f'({name.lower()})=', f'{level} {title}', '']
    if level == '###': res += [f'[source]({lookup.code(name)}){{.source-link}}', '']
    if f is o: res += ['```python', *wrap(signature(f, title), 96, subsequent_indent=' '*4), '```', '']
    res += [re.sub(r'^(`[^`]+`)  +', r'* \1: ', docstring(o), flags=re.M), '']     # aligned names are a list
    rows = [(f'*{k}*' if k in ('returns', 'raises') else f'`{k}`', words) for k, words in notes(f).items()]
    parts = []
    for key, member in vars(o).items() if inspect.isclass(o) else ():
        f = getattr(member, 'fget', None) or getattr(member, '__func__', member)
        if key[0] == '_' or not inspect.isfunction(f) or f.__module__ != o.__module__ or not about(key, f): continue
        if f is member and notes(f): parts.append(described(f, f'{name}.{key}', '####'))
        else:
            res.append(f'({name.lower()}.{key})=')
            rows.append((f'`.{key if isinstance(member, property) else signature(f, key)}`', about(key, f)))
    if rows: res.append(table('parameters', rows))
    return '\n\n'.join([lookup.linkify('\n'.join(res)), *parts])


def exported(c, symbols):
    "Yield what takes the place of an exported cell: its public names, each with its folded source, and constants"
    for node in ast.parse(c.source).body:
        code = '\n'.join(c.source.split('\n')[node.lineno - 1:node.end_lineno])
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != '_':
            code = dedent(inspect.getsource(symbols[node.name])).rstrip()
            source = f'<details class="source"><summary>Source</summary>\n\n````none\n{code}\n````\n\n</details>'
            yield mk_cell(f'{myst_text(described(symbols[node.name], node.name))}\n\n{source}', 'markdown')
        names = [o.id for o in getattr(node, 'targets', ()) if isinstance(o, ast.Name) and o.id[0] != '_']
        if names: yield mk_cell(''.join(f'({o.lower()})=\n' for o in names) + f'```python\n{code}\n```', 'markdown')


# Pages for MyST

def myst_text(s):
    "Write divisions and links to symbols as MyST does; private symbols get no link"
    s = re.sub(r'^(:{3,}) *\{\.([\w-]+)\}$', r'\1{container} \2', s, flags=re.M)
    s = re.sub(r'(!\[[^\]]*\]\((?:\.\./)*images/[^)]*\))(?!\{)', r'\1{.chart}', s)      # screenshots on white
    s = re.sub(rf'\[(`[^`]+`)\]\({site}[^)]*[#.]_[^)]*\)', r'\1', s)
    s = re.sub(rf'{site}[^)#\s]*(#[^)\s]+)', r'\1', s)
    s = re.sub(rf'(?<!\[)`({"|".join(constants())})`', lambda m: f'[{m[0]}](#{m[1].lower()})', s)
    link, other = r'\[(?:`[^`]+`)\]\([^)]*\)', r'(?:[^\[\]`]|`[^`]*`)*'     # links in a link, made of its words
    def flat(m): return re.sub(r'\[(`[^`]+`)\]\([^)]*\)', r'\1', m[1]) + m[2]
    return re.sub(rf'(?<![!`])(\[(?:{other}{link})+{other})(\]\([^)]*\))', flat, s)


def is_chart(png):  # base64
    "Is a picture drawn on white, so that it can be turned dark? Photographs cannot"
    from PIL import Image
    image = Image.open(BytesIO(b64decode(png))).convert('L')
    return image.getpixel((0, 0)) > 250 and sum(image.histogram()[225:]) > image.width*image.height/4


def last_words(text):
    "Return the last sentence of a text without markup, which describes a picture that does not describe itself"
    plain = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', ' '.join(text.strip().split('\n\n')[-1].split()))
    return re.split(r'(?<=[.?!]) +', re.sub(r'[`*\\#]', '', plain))[-1].rstrip(':.')


def code_cell(c, flags, words):
    "Set what MyST-NB hides of a cell, and what describes its pictures"
    images = [o.data for o in c.get('outputs', []) if 'image/png' in o.get('data', {})]
    said = [''.join(o.get('text/plain', '')) for o in images]
    if images:
        options = {'alt': '; '.join(words if o[:1] == '<' else o for o in said)}
        if all(is_chart(o['image/png']) for o in images): options['classes'] = 'chart'
        c.metadata['mystnb'] = {'image': options}
    hidden = {'echo: false': 'remove-input', 'output: false': 'remove-output', 'code-fold: true': 'hide-input'}
    c.metadata['tags'] = [tag for flag, tag in hidden.items() if flag in flags]
    if all(o.startswith(('assert ', *' )]}')) for o in c.source.splitlines()):      # it only asserts
        c.metadata['tags'] = ['hide-input']
        c.metadata['mystnb'] = {'code_prompt_show': 'Check', 'code_prompt_hide': 'Check'}
    return c


def read_page(path):
    "Convert a notebook for MyST-NB"
    nb, page = read_nb(path), path.relative_to(nbs).with_suffix('').as_posix()
    module = next((module for module, home in homes().items() if home == page), 'all')
    symbols, cells, words, own = vars(import_module(f'{cfg.lib_name}.{module}')), [], '', names_on(page)
    for c in nb.cells:
        flags = [o.strip() for o in re.findall(r'^#\|(.*)\n?', c.source, flags=re.M)]
        c.source = re.sub(r'^#\|.*\n?', '', c.source, flags=re.M) if c.cell_type == 'code' else c.source
        if c.cell_type == 'markdown':
            words = last_words(c.source)
            c.source = myst_text(filled(lookup.linkify(c.source), page))
            cells.append(c)
        elif 'export' in flags: cells += exported(c, symbols)
        elif 'exporti' in flags:    # of the class that has all verbs, what is its own
            verbs = [o.shown.replace('learn', 'Learner') for o in own if 'class' in c.source]
            cells += [mk_cell(myst_text(described(eval(o, symbols), o)), 'markdown') for o in verbs]
        elif not {'hide', f'default_exp {module}'} & {*flags} and c.source.strip():
            cells.append(code_cell(c, flags, words))
    title, lead = first_lines(page)
    start = re.sub(r'\A# .*\n+(?:> .*\n?)*', '', cells[0].source)
    names = names_table(own) if len(own) > 1 and module != 'all' else ''
    cells[0].source = '\n\n'.join(filter(None, [f'# {title}', f'{{.lead}}\n{lead}', names, start]))
    nb.cells = cells
    nb.metadata['language_info'] = {'name': 'python', 'pygments_lexer': 'ipython3'}
    return nb
