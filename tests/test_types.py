"""All public signatures are annotated, so that type checkers and completion know them

`make lint` checks `typed_script.py`, which uses all verbs and makes some mistakes, with `mypy --strict`.
"""
import ast
from importlib import import_module
from pathlib import Path

root = Path(__file__).parents[1]

def lacks(f, is_method):
    "What a function lacks: names of parameters, and 'return'"
    a = f.args
    is_static = any(getattr(o, 'id', '') == 'staticmethod' for o in f.decorator_list)
    params = [*a.posonlyargs, *a.args][is_method and not is_static:]
    params += [*a.kwonlyargs, *(o for o in (a.vararg, a.kwarg) if o)]
    return [o.arg for o in params if o.annotation is None] + ['return']*(f.returns is None and f.name != '__init__')

def test_public_signatures_are_annotated():
    "Of the public names of all modules and the methods of classes"
    found = {}
    for path in sorted((root/'trainer_nb').rglob('*.py')):
        if path.stem in ('__init__', '__main__', '_modidx', 'all'): continue
        module = '.'.join(path.relative_to(root).with_suffix('').parts)
        public = {*import_module(module).__all__}
        for o in ast.parse(path.read_text(encoding='utf-8')).body:
            if getattr(o, 'name', None) not in public: continue
            if isinstance(o, ast.FunctionDef): found[f'{module}.{o.name}'] = lacks(o, False)
            for f in o.body if isinstance(o, ast.ClassDef) else ():
                if isinstance(f, ast.FunctionDef) and (f.name[0] != '_' or f.name == '__init__'):
                    found[f'{module}.{o.name}.{f.name}'] = lacks(f, True)
    wrong = {name: what for name, what in found.items() if what}
    assert len(found) > 300 and not wrong, wrong
