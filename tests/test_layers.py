"The house: who may import whom, what nobody may import at the top of a module, and what an import costs."
import ast, subprocess, sys
from pathlib import Path

import pytest

lib = Path(__file__).parents[1]/'trainer_nb'
modules = {p.stem: p for p in sorted(lib.rglob('*.py')) if p.stem not in ('__init__', '_modidx')}

BASE = {'core', 'charts', 'data', 'loaders', 'hooks', 'metrics', 'history', 'run', 'outputs', 'errors', 'mistakes', 'learner', 'screens', 'rehearsal'}
MAY_IMPORT = {
    'core': set(), 'charts': set(), 'data': {'core'}, 'loaders': {'core', 'data'}, 'seeded': {'core'}, 'errors': set(), 'mistakes': {'core', 'data'}, 'hooks': {'core', 'charts'}, 'metrics': {'core'}, 'history': {'core', 'charts'}, 'run': {'core', 'data', 'metrics'}, 'outputs': {'core', 'data', 'loaders'},
    'learner': BASE - {'learner', 'screens', 'rehearsal'}, 'screens': {'core', 'charts'}, 'rehearsal': BASE - {'rehearsal', 'screens'},
    **dict.fromkeys(['schedule', 'optimize', 'precision', 'compile', 'average', 'guard', 'profile', 'early_stopping', 'display', 'loggers'], BASE),
    'shares': {'core', 'data', 'loaders'}, 'team': BASE, 'sharded': BASE | {'team'}, 'first_step': BASE | {'shares'}, 'distributed': BASE | {'first_step', 'shares', 'sharded', 'team'}, 'launch': BASE | {'distributed', 'team'},
    'files': {'core'}, 'parts': {'core', 'files'}, 'snapshot': BASE, **dict.fromkeys(['checkpoint', 'export'], BASE | {'files', 'parts', 'snapshot'}), 'trackers': BASE | {'loggers'},
    **dict.fromkeys(['controls', 'lr_find'], BASE | {'display'}),
    'all': set(modules) - {'all'},
}
LAZY = {'matplotlib', 'PIL', 'ipywidgets', 'fastprogress'}
HEAVY = [*LAZY, 'IPython', 'pandas', 'sklearn', 'accelerate', 'tensorboard', 'torch._dynamo']


def imports(tree):
    "Names of what is imported anywhere in `tree`: ours as `.core`"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import): yield from (o.name.replace('trainer_nb.', '.') for o in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = '.'*node.level + (node.module or '')
            name = name.replace('trainer_nb.', '.') if name != 'trainer_nb' else '.'
            yield from [name] if name != '.' else ('.' + o.name for o in node.names)


def at_import(node):
    "The parts of a module that run when it is imported"
    for o in ast.iter_child_nodes(node):
        if isinstance(o, ast.stmt) and not isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield o
            yield from at_import(o)


@pytest.fixture(params=modules)
def module(request): return request.param, ast.parse(modules[request.param].read_text(encoding='utf-8'))


def test_arrows_point_down(module):
    name, tree = module
    assert name in MAY_IMPORT, f'give {name} a place in the house'
    upwards = {o.split('.')[1] for o in imports(tree) if o[0] == '.'} - MAY_IMPORT[name]
    assert not upwards, f'{name} imports {upwards}'


def test_no_star_import_and_no_bare_except(module):
    for node in ast.walk(module[1]):
        assert not (isinstance(node, ast.ImportFrom) and node.names[0].name == '*'), f'line {node.lineno}: import by name'
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f'line {node.lineno}: say what is caught'


def test_screens_load_where_they_are_used(module):
    tops = {o.split('.')[0] for stmt in at_import(module[1]) if isinstance(stmt, (ast.Import, ast.ImportFrom)) for o in imports(stmt)}
    assert not tops & LAZY


def test_the_rules_see():
    "The functions above find what they are there to find"
    tree = ast.parse('from .learner import a\nfrom trainer_nb.data import b\nfrom . import core\nimport trainer_nb.hooks, os.path\n'
                     'try: import matplotlib.pyplot\nexcept ImportError: pass\ndef f(): import ipywidgets')
    assert list(imports(tree)) == ['.learner', '.data', '.core', '.hooks', 'os.path', 'matplotlib.pyplot', 'ipywidgets']
    assert sum(isinstance(o, (ast.Import, ast.ImportFrom)) for o in at_import(tree)) == 5


def test_import_is_light():
    code = ('from time import perf_counter\nimport sys, torch\nbefore, t = set(sys.modules), perf_counter()\nimport trainer_nb.all\n'
            'print(f"{perf_counter() - t:.3f} s on top of torch", *(set(sys.modules) - before), sep="\\n")')
    took, *loaded = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, check=True).stdout.splitlines()
    print('import trainer_nb.all costs', took)      # `pytest -rP` shows it
    assert not {o for o in loaded if o.startswith(tuple(HEAVY))}
