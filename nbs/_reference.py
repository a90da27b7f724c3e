"""Order a reference page: what is public, each with an example, then how it works, which folds away"""
import ast, builtins, re
from copy import deepcopy
from importlib import import_module
from types import ModuleType

from execnb.nbio import mk_cell

INNER = 'How it works'      # heading of what folds away
LONG = 36                   # lines of an example, with what it needs


def shown_name(c):
    "Return `Learner.fit` for a cell `show_doc(Learner.fit)`"
    m = re.match(r'show_doc\(([\w.]+)', re.sub(r'^#\|.*\n?', '', c.source, flags=re.M))
    return m[1] if m else None


def statements(c):  # list of (node, its lines)
    "List the statements of a cell"
    try: body = ast.parse(c.source).body
    except SyntaxError: return []       # a magic
    lines = c.source.split('\n')
    def first(o): return min([o.lineno, *(d.lineno for d in getattr(o, 'decorator_list', ()))])
    return [(o, '\n'.join(lines[first(o) - 1:o.end_lineno])) for o in body]


def bound(node):
    "Return the names that a statement binds in its module"
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)): return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(o.asname or o.name).partition('.')[0] for o in node.names}
    return {o.id for o in ast.walk(node) if isinstance(o, ast.Name) and isinstance(o.ctx, ast.Store)}


def used(nodes):
    "Return the names that code uses, except those that it binds"
    inside = [o for node in nodes for o in ast.walk(node)]
    own = {o.arg for o in inside if isinstance(o, ast.arg)}.union(*map(bound, inside))
    return {o.id for o in inside if isinstance(o, ast.Name)} - own - vars(builtins).keys()


def needed(
    names,  # that an example uses
    before, # statements of the page up to there
    given,  # names that need no statement
):          # (list of statements, set of names without one)
    "Find the statements that an example needs"
    found, names = [], names - given
    for node, text in reversed(before):
        new, root = bound(node), getattr(getattr(node, 'value', None), 'func', None)
        while isinstance(root, ast.Attribute): root = root.value
        is_change = isinstance(node, ast.Expr) and getattr(root, 'id', None) in names       # learn.fit(2)
        if not new & names and not is_change: continue
        found.insert(0, (node, text))
        names = names - new | used([node]) - given
    return found, names


def uses(nodes, title):
    "Is a public name called, or a method or property `Learner.x`? 2 if it is that of `learn`"
    name, found = title.rpartition('.')[2], 0
    for o in (o for node in nodes for o in ast.walk(node)):
        if isinstance(o, ast.Attribute) and o.attr == name and '.' in title:
            found = max(found, 1 + (getattr(o.value, 'id', None) == 'learn'))
        if isinstance(o, ast.Call) and '.' not in title:
            found = max(found, 2*(name in (getattr(o.func, 'id', None), getattr(o.func, 'attr', None))))
    return found


def examples(title, cells, symbols, given):
    "List cells with an output that show a symbol at work, the clearest first, with the statements that they need"
    found, before = [], []
    for i, c in enumerate(cells):
        if c.cell_type != 'code': continue
        body = [o for o in statements(c) if not isinstance(o[0], ast.Assert)]
        nodes = [o for o, _ in body]
        is_shown = c.get('outputs') and not re.search(r'^#\| *(echo|output|include): *false', c.source, flags=re.M)
        if is_shown and (how := uses(nodes, title)):
            needs, rest = needed(used(nodes), before, given)
            size = sum(text.count('\n') + 1 for _, text in needs + body)
            is_inner = any(o[0] == '_' or o not in symbols for o in rest)
            found.append(((-how, is_inner, size > LONG, i), c, needs, sorted(rest & symbols.keys())))
        before += body
    return [o[1:] for o in sorted(found, key=lambda o: o[0])]


def import_line(name, symbols, module):
    o = symbols[name]
    if isinstance(o, ModuleType): return f'import {o.__name__}' + f' as {name}'*(o.__name__ != name)
    home = getattr(o, '__module__', module)
    return f'from {module if home.startswith("trainer_nb") else home.partition("._")[0]} import {name}'


def as_code(lines):
    "Join statements, with empty lines around those that span lines"
    res = ''
    for last, o in zip(['', *lines], lines): res += '\n'*(1 + ('\n' in last + o) if res else 0) + o
    return res


def in_order(
    cells,      # of the notebook, as nbdev has processed them
    public,     # list of `Name`
    symbols,    # of the module
    module,     # its name
    front=None, # the cell with the program of the front page, which is the example of `Learner`
):              # list of cells
    "Put the public names first, each with an example, and everything else below"
    star, docs = {*import_module('trainer_nb.all').__all__}, {}
    for i, c in enumerate(cells):
        if name := shown_name(c): docs[name.lower()] = i
    head, gone, known, shown = [], set(), [], []
    page = re.search(r'title: (.*)', cells[0].source)[1].lower()
    def place(o): return o.shown.lower() != page, '.' not in o.shown, docs.get(o.label, 0)
    for o in sorted(public, key=place):
        name = getattr(o.symbol, '__qualname__', None)
        if not name: continue       # a constant
        c = mk_cell(f'show_doc({name})')
        c.title = o.shown.replace('learn.', 'Learner.')
        head.append(c)
        gone.add(docs.get(o.label))
        if any(uses([node for node, _ in statements(k)], c.title) for k in shown): continue    # seen above
        if o.label == 'learner' and front:
            front.source = re.sub(r'^#\|.*\n', '', front.source, flags=re.M)
            head.append(front)
            shown.append(front)
            continue
        found = examples(c.title, cells, symbols, star)
        if not found: continue
        c, needs, own = found[0]
        new = [text for _, text in needs if text not in known]
        lines = ['from trainer_nb.all import *']*(not shown) + [import_line(o, symbols, module) for o in own]
        lines = [o for o in lines if o not in known]
        if sum(o.count('\n') + 1 for o in new) > LONG: new = []
        known += new + lines
        shown.append(c)
        c = deepcopy(c)
        c['id'] = f'example-{len(shown)}'       # the cell stands below, too
        own = [text for node, text in statements(c) if not isinstance(node, ast.Assert)]
        c.source = '\n\n'.join(filter(None, ['\n'.join(lines), as_code(new), as_code(own)]))
        head.append(c)
    rest = [c for i, c in enumerate(cells) if i not in gone and not re.search(r'\b_', shown_name(c) or '')]
    return [*rest[:2], *head, mk_cell(f'## {INNER}', 'markdown'), *map(deeper, rest[2:])]


def deeper(c):
    "Put the headings of a page one level down"
    if c.cell_type != 'markdown': return c
    parts = re.split(r'(^```.*?^```)', c.source, flags=re.M | re.S)
    c.source = ''.join(o if i % 2 else re.sub(r'^(##+) ', r'#\1 ', o, flags=re.M) for i, o in enumerate(parts))
    return c
