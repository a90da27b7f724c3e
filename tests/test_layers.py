"The house: which subpackage may import which, what nobody may import at the top of a module, and what an import costs."
import ast, re, subprocess, sys
from pathlib import Path

lib = Path(__file__).parents[1]/'trainer_nb'
trees = {'.'.join(p.relative_to(lib).with_suffix('').parts): ast.parse(p.read_text(encoding='utf-8'))
         for p in sorted(lib.rglob('*.py')) if p.stem not in ('__init__', '_modidx')}

MAY_IMPORT = {      # subpackage → the subpackages below it
    'base': set(),
    'draw': {'base'},
    'data': {'base'},
    'loop': {'base', 'draw', 'data'},
    'features': {'base', 'draw', 'data', 'loop'},
    'save': {'base', 'draw', 'data', 'loop'},
    'show': {'base', 'draw', 'data', 'loop'},
    'parallel': {'base', 'draw', 'data', 'loop', 'save'},
    'look': {'base', 'draw', 'data', 'loop'},
    'runs': {'base', 'draw', 'data', 'loop', 'save', 'show', 'parallel'},
    'learner': {'base', 'loop', 'features', 'save', 'show', 'parallel', 'look', 'runs'},
    'all': {'base', 'data', 'loop', 'features', 'save', 'show', 'parallel', 'look', 'runs', 'learner'},
    '__main__': {'runs', 'all'},
}
HEAVY = 'matplotlib', 'PIL', 'ipywidgets', 'fastprogress', 'IPython', 'pandas', 'sklearn', 'accelerate', 'tensorboard'

def imports(tree, module=''):
    "Full names of the modules that `tree`, the source of trainer_nb.`module`, imports anywhere"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import): yield from (o.name for o in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level: yield node.module
        elif isinstance(node, ast.ImportFrom):
            package = ['trainer_nb', *module.split('.')]
            names = [node.module] if node.module else [o.name for o in node.names]
            yield from ('.'.join([*package[:-node.level], o]) for o in names)

# module → the modules of trainer_nb that it imports
ours = {name: {o.removeprefix('trainer_nb.') for o in imports(tree, name) if o.startswith('trainer_nb.')}
        for name, tree in trees.items()}

def wing(module): return module.split('.')[0]

def test_arrows_point_down_and_enter_by_front_doors():
    "What a subpackage offers to the others is listed in its `__init__.py`; `learner` takes each verb from its module"
    assert len(trees) > 50 and not {*map(wing, trees)} - MAY_IMPORT.keys(), 'give each module a place in the house'
    between = [(name, o) for name in trees for o in ours[name] if wing(o) != wing(name)]
    assert not [(name, o) for name, o in between if wing(o) not in MAY_IMPORT[wing(name)]]
    assert not [(name, o) for name, o in between if '.' in o and name != 'learner']

def test_no_circle():
    "Modules can be put in an order in which each imports earlier ones only"
    def inside(o): return {m for m in trees if m.startswith(o + '.')} or {o}      # a front door opens all of it
    waits = {name: set().union(*map(inside, ours[name])) & trees.keys() for name in trees}
    while ready := [name for name, needed in waits.items() if not needed & waits.keys()]:
        for name in ready: del waits[name]
    assert not waits, f'these import one another: {waits}'

def test_an_import_is_light_and_the_bare_learner_needs_no_other_wing():
    "In a fresh process; a fit in a terminal draws with nothing heavy, either"
    code = """if True:
        import sys, torch
        before = {*sys.modules}
        from trainer_nb.loop import Learner as Bare
        wings = {o.split('.')[1] for o in sys.modules if o.startswith('trainer_nb.')}
        assert wings == {'base', 'draw', 'data', 'loop'}, wings
        from trainer_nb.all import Learner
        print(*{*sys.modules} - before)
        data, loss_fn = (torch.ones(8, 2), torch.ones(8, 1)), torch.nn.functional.mse_loss
        bare = Bare(torch.nn.Linear(2, 1), data, bs=4, loss_fn=loss_fn)
        assert len(bare.fit(2)) == 2 and bare.display is None and not hasattr(bare, 'lr_find')
        Learner(torch.nn.Linear(2, 1), data, bs=4, loss_fn=loss_fn, display='tty').fit(2)
        print(*{*sys.modules} - before)"""
    out = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, check=True).stdout.splitlines()
    imported, used = out[0].split(), out[-1].split()
    assert len(imported) > 50 and not [o for o in imported if o.startswith((*HEAVY, 'torch._dynamo'))]
    assert not [o for o in used if o.startswith(tuple(HEAVY))]

def test_one_module_knows_private_names_of_torch():
    "But for `torch._dynamo`, which its documentation names"
    names = {(name, ast.unparse(o)) for name, tree in trees.items() for o in ast.walk(tree)
             if isinstance(o, ast.Attribute) and name != 'base.torch_private'}
    assert not [o for o in names if re.match(r'(torch|nn|dist)\.([\w.]+\.)?_(?!dynamo)[a-z]', o[1])]
