"""Write the type stubs beside the modules, for type checkers and completion: `python tools/stubs.py [--check]`

Methods that one module adds to a class of another, as `lr_find` and `save` are added to `Learner`, stand in the class.
A return type is what the comment after the signature says: `bool`, `list of str`, a class of ours.
Parameters are `Any`.
"""
import ast, inspect, pkgutil, re, sys
from functools import cache
from importlib import import_module
from math import inf
from pathlib import Path
from textwrap import dedent

import trainer_nb.all as everything

root = Path(everything.__file__).parent
SPECIAL = {f'__{o}__' for o in 'init call len iter next enter exit getitem contains'.split()}
PLAIN = {'bool', 'int', 'float', 'str', 'bytes', 'list', 'dict', 'tuple', 'set', 'object'}
GENERIC = {'DataLoader': '[Any]', 'dict': '[Any, Any]', 'deque': '[Any]', 'Dataset': '[Any]'}
SIMPLE = type(None), bool, int, float, str
modules = {o.name: import_module(o.name) for o in pkgutil.walk_packages([str(root)], 'trainer_nb.')
           if not o.ispkg and o.name.split('.')[-1] not in ('_modidx', '__main__')}
homes = {name: m for m, module in modules.items() for name, o in vars(module).items()
         if inspect.isclass(o) and o.__module__ == m}
EXAMPLES = dict.fromkeys(everything.Learner.__mro__, everything.Learner(everything.nn.Linear(1, 1)))


@cache
def source(o):
    "The syntax tree of a function or class, and the comment after its signature"
    try: text = dedent(inspect.getsource(o))
    except (OSError, TypeError): return None, ''
    node = ast.parse(text).body[0]
    if isinstance(node, ast.ClassDef): return node, ''
    lines = text.splitlines()[node.lineno - 1:node.body[0].lineno]
    end = next((line for line in lines if re.search(r'\):(\s|$)', line)), '')
    return node, end.partition('  # ')[2].strip()


def as_type(comment, used):
    "What the words about a value say: '`History`', 'list of str', 'int, None if …'"
    words = re.split(r'[:;,(]', comment, maxsplit=1)[0].strip()
    name, rest = re.match(r'`?([\w.]*)`?(.*)', words).groups()
    of = re.fullmatch(r' of `?(\w+)`?s?', rest)
    if name in ('list', 'set') and of and of[1] in PLAIN | homes.keys():
        used.add(of[1])
        res = f'{name}[{of[1]}{GENERIC.get(of[1], "")}]'
    elif name in ('list', 'set'): res = f'{name}[Any]'
    elif name == 'dict': res = 'dict[Any, Any]'
    elif name == 'tuple': res = 'tuple[Any, ...]'
    elif (name in PLAIN or name in homes) and (not rest.strip() or rest.startswith(' or None')):
        used.add(name)
        res = name
    else: return 'Any'
    return res + ' | None' if re.search(r'\bor None\b|[;,] None (if|where|outside|for|while|until)\b', comment) else res


def returned(f, used):
    "The return type of a function"
    wrapped = inspect.unwrap(f)
    node, comment = source(wrapped)
    if wrapped is not f and inspect.isgeneratorfunction(wrapped): return 'AbstractContextManager[Any]'
    if f.__name__ == '__init__' or node is None: return 'None' if f.__name__ == '__init__' else 'Any'
    if comment: return as_type(comment, used)
    own = [o for o in ast.walk(node) if isinstance(o, (ast.Return, ast.Yield, ast.YieldFrom))]
    return 'Any' if any(getattr(o, 'value', None) is not None for o in own) else 'None'


def signature(f, is_method):
    "The parameters of a function"
    parts, has_star = [], False
    for i, p in enumerate(inspect.signature(inspect.unwrap(f)).parameters.values()):
        if p.kind is p.VAR_KEYWORD and p.name == 'others': continue     # only for a better message
        if p.kind is p.KEYWORD_ONLY and not has_star: parts.append('*')
        has_star = has_star or p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY)
        star = {p.VAR_POSITIONAL: '*', p.VAR_KEYWORD: '**'}.get(p.kind, '')
        kind = '' if is_method and i == 0 else ': Any'
        is_simple = type(p.default) in SIMPLE and p.default not in (inf, -inf)
        default = '' if p.default is p.empty else f' = {p.default!r}' if is_simple else ' = ...'
        parts.append(star + p.name + kind + default)
    return ', '.join(parts)


def function(name, f, used, indent='', is_static=False):
    "The line of a function, or of a method where it is indented"
    return f'{indent}def {name}({signature(f, bool(indent) and not is_static)}) -> {returned(f, used)}: ...'


@cache
def attributes(cls):
    "Names that the methods of a class set on `self`"
    node, _ = source(cls)
    found = {}
    for o in ast.walk(node) if node is not None else ():
        is_set = isinstance(o, ast.Attribute) and isinstance(o.ctx, ast.Store)
        if is_set and getattr(o.value, 'id', '') == 'self': found[o.attr] = 1
    return [o for o in found if o[0] != '_']


def held(cls, name, used):
    "The type of an attribute, where an example tells"
    kind = type(getattr(EXAMPLES.get(cls), name, None)).__name__
    if kind not in homes: return 'Any'
    used.add(kind)
    return kind


def base(cls, used):
    "A base class as it is written"
    if cls.__module__ in modules: used.add(cls.__name__)
    elif cls.__module__ != 'builtins': used.add((cls.__module__, cls.__name__))
    return cls.__name__ + GENERIC.get(cls.__name__, '')


def klass(cls, used):
    "The lines of a class"
    if hasattr(cls, '_fields') and issubclass(cls, tuple):
        used.add(('typing', 'NamedTuple'))
        return [f'class {cls.__name__}(NamedTuple):', *(f'    {o}: Any' for o in cls._fields)]
    bases = ', '.join(base(o, used) for o in cls.__bases__ if o is not object)
    lines, seen = [], set()
    for name, o in vars(cls).items():
        if name[0] == '_' and name not in SPECIAL: continue
        seen.add(name)
        if isinstance(o, property):
            lines += ['    @property', f'    def {name}(self) -> {returned(o.fget, used)}: ...']
            if o.fset: lines += [f'    @{name}.setter', f'    def {name}(self, value: Any) -> None: ...']
        elif isinstance(o, (classmethod, staticmethod)):
            lines += [f'    @{type(o).__name__}', function(name, o.__func__, used, '    ', isinstance(o, staticmethod))]
        elif inspect.isfunction(o): lines.append(function(name, o, used, '    '))
        elif not hasattr(o, 'cache_info') and not inspect.isclass(o): lines.append(f'    {name}: Any')
        elif inspect.isclass(o): lines.append(f'    {name}: type[Any]')
    known = seen | {name for o in cls.__mro__[1:] for name in vars(o)}
    for o in cls.__mro__[1:]: known |= set(attributes(o)) if o.__module__ in modules else set()
    fields = [o for o in [*attributes(cls), *getattr(cls, '__annotations__', {})] if o not in known and o[0] != '_']
    body = [*(f'    {o}: {held(cls, o, used)}' for o in dict.fromkeys(fields)), *lines] or ['    ...']
    return [f'class {cls.__name__}({bases}):' if bases else f'class {cls.__name__}:', *body]


def stub(name, module):
    "The text of a module's stub"
    used, body = set(), []
    for key, o in vars(module).items():
        is_ours = getattr(o, '__module__', None) == name
        if inspect.isclass(o) and is_ours and o.__name__ == key: body += ['', *klass(o, used)]
        elif callable(o) and is_ours and inspect.isfunction(inspect.unwrap(o)) and key in module.__all__:
            body.append(function(key, inspect.unwrap(o) if hasattr(o, 'cache_info') else o, used))
        elif key in getattr(module, '__all__', ()) and not is_ours:
            body.append(f'{key}: {type(o).__name__ if type(o).__name__ in ("str", "int", "float", "bool") else "Any"}')
    text = '\n'.join(body)
    imports = [('contextlib', 'AbstractContextManager')]*('AbstractContextManager' in text)
    imports += [o for o in used if isinstance(o, tuple)]
    imports += [(homes[o], o) for o in used if isinstance(o, str) and o in homes and homes[o] != name]
    head = ['# Written by tools/stubs.py', *(['from typing import Any'] if 'Any' in text else [])]
    if body[:1] != ['']: text = '\n' + text
    return '\n'.join([*head, *(f'from {m} import {o}' for m, o in sorted(imports)), text]) + '\n'


def door(path):
    "The stub of a wing's front door: what it imports, it offers"
    found = [o for o in ast.parse(path.read_text(encoding='utf-8')).body if isinstance(o, ast.ImportFrom)]
    lines = [f'from .{o.module} import {a.name} as {a.name}' for o in found for a in o.names]
    return '\n'.join(['# Written by tools/stubs.py', *lines, ''])


def main(*args):
    stale = []
    texts = {Path(m.__file__): stub(name, m) for name, m in modules.items() if name != 'trainer_nb.all'}
    for path, text in {**texts, **{path: door(path) for path in root.glob('*/__init__.py')}}.items():
        path = path.with_suffix('.pyi')
        if path.exists() and path.read_text(encoding='utf-8') == text: continue
        stale.append(str(path.relative_to(root)))
        if '--check' not in args: path.write_text(text, encoding='utf-8')
    if '--check' in args and stale: return f'run python tools/stubs.py: {", ".join(stale)}'


if __name__ == '__main__': sys.exit(main(*sys.argv[1:]))
