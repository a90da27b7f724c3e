"""Group the public names and their pages by task, for the API pages, the sidebar, the general index and the search

Nothing here is a list of names. A page in `nbs/api` says which modules it covers, `::: {.names of="show"}`, and gets
their public names and pages; a folder covers all its modules that no page covers by name.
"""
import json, os, re
from collections import namedtuple
from fnmatch import fnmatch
from functools import cache
from importlib import import_module

from _terms import TERMS
from _pages import cfg, constants, docstring, in_words, included, lookup, nbs, notes

Name = namedtuple('Name', 'shown label symbol module')      # 'learn.fit', 'learner.fit', the function, 'loop.learner'


@cache
def homes():    # dict: module → its page
    "Find the notebook of each module"
    found = {}
    for path in sorted(nbs.rglob('[!_.]*.ipynb')):
        if '.ipynb_checkpoints' in path.parts: continue
        module = re.search(r'#\| *default_exp +([\w.]+)', path.read_text(encoding='utf-8'))
        if module: found[module[1]] = path.relative_to(nbs).with_suffix('').as_posix()
    return found


@cache
def tasks():    # dict: page → the modules and folders that it covers
    pages = {f'api/{o.stem}': o.read_text(encoding='utf-8') for o in sorted((nbs/'api').glob('*.qmd'))}
    return {page: re.search(r'^::: \{\.names of="([^"]*)"\}', text, flags=re.M)[1].split()
            for page, text in pages.items()}


def covers(name, module): return f'{module}.'.startswith(f'{name}.')


def task_of(module):
    "Return the API page that covers a module: one that names it, else one that names its folder"
    found = [(len(o), page) for page, covered in tasks().items() for o in covered if covers(o, module)]
    if not found: raise ValueError(f'No page in nbs/api covers the module {module}: name it there, or its folder.')
    return max(found)[1]


def verbs():
    "Yield the methods and properties of `Learner` that completion shows"
    learner = import_module(f'{cfg.lib_name}.all').Learner
    for name in dir(learner):
        o = getattr(learner, name)
        f = getattr(o, 'fget', o)
        if name[0] == '_' or not about(name, f): continue
        yield Name(f'learn.{name}', f.__qualname__.lower(), f, f.__module__.removeprefix(f'{cfg.lib_name}.'))


@cache
def public():   # list of `Name`
    "List what `all` has, without the names of torch, and the verbs of `Learner`"
    everything, found = vars(import_module(f'{cfg.lib_name}.all')), list(verbs())
    for module in homes().keys() - {'all'}:
        own = import_module(f'{cfg.lib_name}.{module}').__all__
        def is_home(o):     # of a class, or of one that it extends, as the `Learner` that has all verbs
            classes = getattr(everything[o], '__mro__', [everything[o]])
            return f'{cfg.lib_name}.{module}' in [getattr(c, '__module__', f'{cfg.lib_name}.{module}') for c in classes]
        found += [Name(o, o.lower(), everything[o], module) for o in own if o in everything and is_home(o)]
    return sorted(found, key=lambda o: ('.' not in o.shown, homes()[o.module], o.shown.lower()))


def public_on(page):
    "List the public names of a page's module, if it is a reference page"
    return [] if page == homes()['all'] else [o for o in public() if homes()[o.module] == page]


def about(name, o):
    "Describe a symbol in one line"
    if name in constants(): return ', '.join(map('`{}`'.format, o))
    line = (docstring(o) or notes(o).get('returns') or '').split('\n')[0]
    return re.sub(r'; raises .*|\. Define the methods that you need:$', '', line)     # a page has the errors


def table(
    names,  # list of `Name`
):          # str
    rows = [f'| [`{o.shown}`](#{o.label}) | {lookup.linkify(about(o.shown, o.symbol))} |' for o in names]
    return '\n'.join(['{.names}', '| | |', '|---|---|', *rows])


def names_of(page):
    "List the names of an API page, in the order in which it names modules and folders"
    def place(o): return next(i for i, name in enumerate(tasks()[page]) if covers(name, o.module))
    return sorted((o for o in public() if task_of(o.module) == page), key=place)


def pages_of(page): return sorted({homes()[o.module] for o in names_of(page)})


def inner_pages():
    "List the pages of modules that have no public name"
    return sorted(set(homes().values()) - {homes()[o.module] for o in public()} - {homes()['all']})


def source_of(page): return next(o for o in (nbs/f'{page}.ipynb', nbs/f'{page}.qmd') if o.exists())


def first_lines(page):  # (title, lead)
    "Read what a page begins with"
    path = source_of(page)
    text = path.read_text(encoding='utf-8')
    if path.suffix == '.ipynb': text = ''.join(json.loads(text)['cells'][0]['source'])
    text = included(text, path.parent)
    name, lead = re.match(r'# (.*)\n+(?:> )?(.*)', text).groups()
    return in_words(name) if page in homes().values() else name, lead


def below(pages):
    "Put pages below this one in the sidebar"
    return '\n'.join(['```{toctree}', ':hidden:', '', *(f'/{o}' for o in pages), '```', ''])


def linked(pages, folder):
    "List pages with their leads, and put them below this one in the sidebar"
    lines = [below(pages)]
    for page in pages:
        name, lead = first_lines(page)
        lines.append(f'- [{name}]({os.path.relpath(source_of(page), nbs/folder)}): {lead}')
    return '\n'.join(lines)


def matching(*patterns):
    "List the pages that match, in order"
    pages = [o.relative_to(nbs).with_suffix('').as_posix() for o in sorted(nbs.rglob('[!_.]*.*'))
             if o.suffix in ('.ipynb', '.qmd') and not any(part[0] in '._' for part in o.relative_to(nbs).parts)]
    return [o for o in pages if any(fnmatch(o, pattern) for pattern in patterns)]


def filled(s, docname):
    "Write what divisions such as `::: {.pages of=...}` ask for"
    folder = docname.rpartition('/')[0]
    def found(m):
        left_out = {docname, *matching(*(m[2] or '').split())}
        return [o for o in matching(*m[1].split()) if o not in left_out]
    def names(m): return f'{table(names_of(docname))}\n\n## Pages\n\n{linked(pages_of(docname), folder)}'
    def pages(m): return linked(found(m), folder)
    s = re.sub(r'^::: \{\.pages of="([^"]*)"(?: but="([^"]*)")?\}\n:::$', pages, s, flags=re.M)
    s = re.sub(r'^::: \{\.sidebar of="([^"]*)"()\}\n:::$', lambda m: below(found(m)), s, flags=re.M)
    s = re.sub(r'^::: \{\.names of="[^"]*"\}\n:::$', names, s, flags=re.M)
    s = re.sub(r'^::: \{\.inner\}\n:::$', lambda m: linked(inner_pages(), folder), s, flags=re.M)
    return re.sub(r'^:::\{container\} names\n:::$', lambda m: all_names(), s, flags=re.M)


def all_names():
    "Write all public names, by task"
    parts = [f'## {first_lines(page)[0]}\n\n{table(names_of(page))}' for page in tasks()]
    return '\n\n'.join(parts)


def entries(docname):   # list of (entry, id on the page, in the general index?, first in the search?)
    "List what leads to a page: its public names, as they are typed and in words, and the terms of `_terms.py`"
    found, elsewhere = {}, set()
    for place, terms in TERMS.items():
        page, _, section = place.partition('#')
        if page == docname: found |= {term: (section, True, True) for term in terms}
        else: elsewhere |= {term.lower() for term in terms}
    for o in public():
        if homes()[o.module] != docname: continue
        name, target = o.shown.removeprefix('learn.'), re.sub(r'[^a-z0-9]+', '-', o.label)
        words = re.sub(r'(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_', ' ', name).lower()
        shown = {words: False, name: o.shown == name, o.shown: True}
        found |= {entry: (target, is_shown, entry.lower() not in elsewhere) for entry, is_shown in shown.items()}
    return [(entry, *rest) for entry, rest in found.items()]
