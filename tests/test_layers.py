"The house: which wing may import which, what nobody may import at the top of a module, and what an import costs."
import ast, subprocess, sys
from pathlib import Path

import pytest

from trainer_nb.loop.mistakes import VERBS

lib = Path(__file__).parents[1]/'trainer_nb'
modules = {'.'.join(p.relative_to(lib).with_suffix('').parts): p
           for p in sorted(lib.rglob('*.py')) if p.stem not in ('__init__', '_modidx')}

MAY_IMPORT = {      # wing → the wings below it
    'base': set(),
    'data': {'base'},
    'loop': {'base', 'data'},
    'features': {'base', 'data', 'loop'},
    'save': {'base', 'data', 'loop'},
    'show': {'base', 'data', 'loop'},
    'parallel': {'base', 'data', 'loop', 'save'},
    'look': {'base', 'data', 'loop'},
    'runs': {'base', 'data', 'loop', 'save', 'show', 'parallel'},
    'all': {'base', 'data', 'loop', 'features', 'save', 'show', 'parallel', 'look', 'runs'},
    '__main__': {'runs', 'all'},
}
LAZY = {'matplotlib', 'PIL', 'ipywidgets', 'fastprogress'}
HEAVY = [*LAZY, 'IPython', 'pandas', 'sklearn', 'accelerate', 'tensorboard', 'torch._dynamo']


def imports(tree, module=''):
    "Full names of the modules that `tree`, the source of trainer_nb.`module`, imports anywhere"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import): yield from (o.name for o in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level: yield node.module
        elif isinstance(node, ast.ImportFrom):
            package = ['trainer_nb', *module.split('.')[:-1]]
            package = package[:len(package) - node.level + 1]
            yield from ['.'.join([*package,
                                  node.module])] if node.module else ('.'.join([*package, o.name]) for o in node.names)


def at_import(node):
    "The parts of a module that run when it is imported"
    for o in ast.iter_child_nodes(node):
        if isinstance(o, ast.stmt) and not isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield o
            yield from at_import(o)


def ours(name, tree):
    "The modules of trainer_nb that one of them imports"
    return {o.removeprefix('trainer_nb.') for o in imports(tree, name) if o.startswith('trainer_nb.')}


@pytest.fixture(params=modules)
def module(request): return request.param, ast.parse(modules[request.param].read_text(encoding='utf-8'))


def test_arrows_point_down(module):
    name, tree = module
    wing = name.split('.')[0]
    assert wing in MAY_IMPORT, f'give {name} a place in the house'
    upwards = {o for o in ours(name, tree) if o.split('.')[0] not in MAY_IMPORT[wing] | {wing}}
    assert not upwards, f'{name} imports {upwards}'


def test_wings_have_front_doors(module):
    "What a wing offers to the others is listed in its `__init__.py`"
    name, tree = module
    wing = name.split('.')[0]
    inside = {o for o in ours(name, tree) if '.' in o and o.split('.')[0] != wing}
    assert not inside, (f'{name} imports {inside}: list the names in the __init__.py of the wing, '
                        'and import them from there')


def test_front_doors_offer_what_is_used():
    used = {(o.module, a.name) for name,
            p in modules.items() for o in ast.walk(ast.parse(p.read_text(encoding='utf-8')))
            if isinstance(o, ast.ImportFrom)
            and (o.level == 2 or (o.module or '').startswith('trainer_nb.') or name == 'all') for a in o.names}
    used = {(m.removeprefix('trainer_nb.'), name) for m, name in used}
    for wing in MAY_IMPORT.keys() - {'all', '__main__'}:
        door = ast.parse((lib/wing/'__init__.py').read_text(encoding='utf-8'))
        idle = {a.name for o in door.body if isinstance(o, ast.ImportFrom)
                for a in o.names if (wing, a.name) not in used}
        assert not idle, f'nobody outside uses {idle} of {wing}'


def test_no_circle():
    "Modules can be put in an order in which each imports earlier ones only"
    def inside(o): return {m for m in modules if m.startswith(o + '.')} or {o}      # a front door opens the whole wing
    waits = {name: set().union(*map(inside, ours(name, ast.parse(p.read_text(encoding='utf-8'))))) & modules.keys()
             for name, p in modules.items()}
    while ready := [name for name, needed in waits.items() if not needed & waits.keys()]:
        for name in ready: del waits[name]
    assert not waits, f'these import one another: {waits}'


def test_no_star_import_and_no_bare_except(module):
    for node in ast.walk(module[1]):
        assert not (isinstance(node, ast.ImportFrom)
                    and node.names[0].name == '*'), f'line {node.lineno}: import by name'
        assert not (isinstance(node, ast.ExceptHandler)
                    and node.type is None), f'line {node.lineno}: say what is caught'


# what variables and attributes that hold a `Learner` or a `Fit` are called
LEARNERS = {'learn', 'learner', 'fit', 'fitting', 'stopped'}

def private_uses(tree):
    """(line, expression) of each private attribute of a `Learner` or a `Fit`; in a method that is patched into one,
    `self` is one. Its own names a module may use"""
    own = {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}
    for f in ast.walk(tree):
        if not isinstance(f, (ast.FunctionDef, ast.Lambda)): continue
        names = LEARNERS | {o.arg for o in f.args.args if isinstance(o.annotation, ast.Name)
                            and o.annotation.id in ('Learner', 'Fit')}
        for o in ast.walk(f):
            if not isinstance(o, ast.Attribute) or o.attr[0] != '_' or o.attr[:2] == '__': continue
            holder = o.value.id if isinstance(o.value, ast.Name) else getattr(o.value, 'attr', None)
            is_own = isinstance(o.value, ast.Name) and holder == 'self' and o.attr in own
            if holder in (names if isinstance(o.value, ast.Name) else LEARNERS) and not is_own:
                yield o.lineno, ast.unparse(o)


def test_nobody_reaches_into_the_loop(module):
    name, tree = module
    if not name.startswith('loop.'):
        assert not {*private_uses(tree)}, 'give it a public name, or pass it as an argument'


def test_nobody_sets_attributes_of_a_class_elsewhere(module):
    statements = [*at_import(module[1])]
    imported = {a.asname or a.name for o in statements if isinstance(o, ast.ImportFrom) for a in o.names}
    for stmt in statements:
        for o in getattr(stmt, 'targets', [getattr(stmt, 'target', None)]):
            if isinstance(o, ast.Attribute):
                assert ast.unparse(o.value) not in imported, f'line {stmt.lineno}: {ast.unparse(o)}'


def patched(tree):
    "Methods that a module adds to `Learner`"
    for f in tree.body:
        if not isinstance(f, ast.FunctionDef) or not f.args.args: continue
        if getattr(f.args.args[0].annotation, 'id', None) == 'Learner':
            yield f.name


def test_verbs_of_other_modules_are_known():
    "A learner finds the module of each method that is patched into it"
    trees = {name: ast.parse(p.read_text(encoding='utf-8')) for name, p in modules.items() if name != 'loop.learner'}
    assert VERBS == {verb: name for name, tree in trees.items() for verb in patched(tree) if verb[0] != '_'}


def test_a_learner_alone_has_all_verbs(tmp_path):
    "In a fresh process that imports nothing else, methods of other wings are there, and `fit(resume=path)` resumes"
    code = """if True:
        import sys, torch
        from torch.nn.functional import mse_loss
        from trainer_nb.loop.learner import Learner
        def make(): return Learner(torch.nn.Linear(2, 1), (torch.ones(8, 2), torch.ones(8, 1)), loss_fn=mse_loss, bs=4)
        assert 'trainer_nb.save' not in sys.modules and make().display is None
        learn, path = make(), sys.argv[1]
        learn.fit(2)
        learn.save(path)
        other = make()
        other.fit(3, resume=path)
        assert other.state.epoch == 3 and len(other.history) == 3, other.state
        try: make().evaluate
        except AttributeError as e: assert 'learn.validate' in str(e), e
        from trainer_nb.loop.mistakes import VERBS
        for name in VERBS: assert name == 'ema' or callable(getattr(learn, name)), name
        assert type(Learner(torch.nn.Linear(2, 1), display='text').display).__name__ == 'Display'"""
    subprocess.run([sys.executable, '-c', code, tmp_path/'all.pt'], check=True)


def test_screens_load_where_they_are_used(module):
    tops = {o.split('.')[0] for stmt in at_import(module[1]) if isinstance(stmt, (ast.Import, ast.ImportFrom))
            for o in imports(stmt)}
    assert not tops & LAZY


def test_the_rules_see():
    "The functions above find what they are there to find"
    tree = ast.parse('from .learner import a\nfrom ..data.passes import b\nfrom . import hooks\nfrom .. import base\n'
                     'import trainer_nb.show.display, os.path\n'
                     'try: import matplotlib.pyplot\nexcept ImportError: pass\ndef f(): import ipywidgets')
    assert [o.removeprefix('trainer_nb.') for o in imports(tree, 'loop.fit')] == [
        'loop.learner', 'data.passes', 'loop.hooks', 'base', 'show.display', 'os.path', 'matplotlib.pyplot',
        'ipywidgets']
    assert sum(isinstance(o, (ast.Import, ast.ImportFrom)) for o in at_import(tree)) == 6
    tree = ast.parse('def f(self:Learner, learn):\n    self._a, self.b, self._g(), self.learn._c, '
                     'self.learn.fitting._d, learn._e\n'
                     '    h = lambda learn: learn._f\ndef _g(self): return self._x')
    assert {o for _, o in private_uses(tree)} == {'self._a', 'self.learn._c', 'self.learn.fitting._d', 'learn._e',
                                                  'learn._f'}


def test_import_is_light():
    code = ('from time import perf_counter\nimport sys, torch\nbefore, t = set(sys.modules), perf_counter()\nimport '
            'trainer_nb.all\n'
            'print(f"{perf_counter() - t:.3f} s on top of torch", *(set(sys.modules) - before), sep="\\n")')
    took, *loaded = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True,
                                   check=True).stdout.splitlines()
    print('import trainer_nb.all costs', took)      # `pytest -rP` shows it
    assert not {o for o in loaded if o.startswith(tuple(HEAVY))}
