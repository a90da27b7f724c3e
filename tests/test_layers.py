"The house: which wing may import which, what nobody may import at the top of a module, and what an import costs."
import ast, re, subprocess, sys
from pathlib import Path

lib = Path(__file__).parents[1]/'trainer_nb'
trees = {'.'.join(p.relative_to(lib).with_suffix('').parts): ast.parse(p.read_text(encoding='utf-8'))
         for p in sorted(lib.rglob('*.py')) if p.stem not in ('__init__', '_modidx')}

MAY_IMPORT = {      # wing → the wings below it
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
HEAVY = ['matplotlib', 'PIL', 'ipywidgets', 'fastprogress', 'IPython', 'pandas', 'sklearn', 'accelerate', 'tensorboard',
         'torch._dynamo']

def imports(tree, module=''):
    "Full names of the modules that `tree`, the source of trainer_nb.`module`, imports anywhere"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import): yield from (o.name for o in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level: yield node.module
        elif isinstance(node, ast.ImportFrom):
            package = ['trainer_nb', *module.split('.')]
            names = [node.module] if node.module else [o.name for o in node.names]
            yield from ('.'.join([*package[:-node.level], o]) for o in names)

def ours(name, tree):
    "The modules of trainer_nb that one of them imports"
    return {o.removeprefix('trainer_nb.') for o in imports(tree, name) if o.startswith('trainer_nb.')}

def wing(module): return module.split('.')[0]

def offenders(find):
    "dict: module → what `find(name, tree)` says against it"
    assert len(trees) > 50
    return {name: found for name, tree in trees.items() if (found := {*find(name, tree)})}

def test_arrows_point_down():
    assert not {*map(wing, trees)} - MAY_IMPORT.keys(), 'give each module a place in the house'
    def upwards(name, tree):
        return (o for o in ours(name, tree) if wing(o) not in MAY_IMPORT[wing(name)] | {wing(name)})
    assert not offenders(upwards)

def test_wings_have_front_doors():
    "What a wing offers to the others is listed in its `__init__.py`, and imported from there"
    def inside(name, tree):
        if name == 'learner': return ()     # it takes each verb from its module
        return (o for o in ours(name, tree) if '.' in o and wing(o) != wing(name))
    assert not offenders(inside)

def test_front_doors_offer_what_is_used():
    used = {(o.module, a.name) for name, tree in trees.items() for o in ast.walk(tree)
            if isinstance(o, ast.ImportFrom)
            and (o.level == 2 or (o.module or '').startswith('trainer_nb.') or name in ('learner', 'all'))
            for a in o.names}
    used = {(m.removeprefix('trainer_nb.'), name) for m, name in used}
    pages = ' '.join(o.read_text(encoding='utf-8') for o in lib.parent.glob('nbs/*/*.ipynb'))
    used |= {(wing, name) for wing, names in re.findall(r'from trainer_nb\.(\w+) import ([\w, ]+)', pages)
             for name in names.split(', ')}
    for wing in MAY_IMPORT.keys() - {'learner', 'all', '__main__'}:
        door = ast.parse((lib/wing/'__init__.py').read_text(encoding='utf-8'))
        idle = {a.name for o in door.body if isinstance(o, ast.ImportFrom)
                for a in o.names if (wing, a.name) not in used}
        assert not idle, f'nobody outside uses {idle} of {wing}'

def test_no_circle():
    "Modules can be put in an order in which each imports earlier ones only"
    def inside(o): return {m for m in trees if m.startswith(o + '.')} or {o}      # a front door opens the whole wing
    waits = {name: set().union(*map(inside, ours(name, tree))) & trees.keys() for name, tree in trees.items()}
    while ready := [name for name, needed in waits.items() if not needed & waits.keys()]:
        for name in ready: del waits[name]
    assert not waits, f'these import one another: {waits}'


# what variables and attributes that hold a `Learner` or a `Fit` are called
LEARNERS = {'learn', 'learner', 'fit', 'fitting', 'stopped'}

def private_uses(tree):
    "(line, expression) of each private attribute of a `Learner` or a `Fit`"
    for o in ast.walk(tree):
        if not isinstance(o, ast.Attribute) or o.attr[0] != '_' or o.attr[:2] == '__': continue
        if getattr(o.value, 'id', getattr(o.value, 'attr', None)) in LEARNERS: yield o.lineno, ast.unparse(o)

def test_nobody_reaches_into_the_loop():
    "What another wing needs has a public name, or is passed as an argument"
    assert not offenders(lambda name, tree: () if wing(name) == 'loop' else private_uses(tree))

def test_the_bare_learner_needs_no_other_wing_and_the_whole_one_has_every_verb(tmp_path):
    "In a fresh process"
    code = """if True:
        import sys, torch
        from trainer_nb.loop import Learner
        learn = Learner(torch.nn.Linear(2, 1), (torch.ones(8, 2), torch.ones(8, 1)), bs=4,
                        loss_fn=torch.nn.functional.mse_loss)
        assert len(learn.fit(2)) == 2 and learn.display is None
        wings = {o.split('.')[1] for o in sys.modules if o.startswith('trainer_nb.')}
        assert wings == {'base', 'draw', 'data', 'loop'}, wings
        try: learn.evaluate
        except AttributeError as e: assert 'learn.validate' in str(e), e

        # the whole one: methods of other wings, `fit(resume=path)`, and nothing to draw with
        from torch.nn.functional import mse_loss
        from trainer_nb.learner import Learner
        def make(): return Learner(torch.nn.Linear(2, 1), (torch.ones(8, 2), torch.ones(8, 1)), loss_fn=mse_loss, bs=4,
                                   display='tty')
        learn, path = make(), sys.argv[1]
        learn.fit(2)
        learn.save(path)
        other = make()
        other.fit(3, resume=path)
        assert other.state.epoch == 3 and len(other.history) == 3, other.state
        heavy = {'matplotlib', 'IPython', 'ipywidgets', 'pandas', 'fastprogress', 'fasthtml'}
        assert not heavy & sys.modules.keys()
        verbs = [name for name, o in vars(Learner).items() if callable(o) and name[0] != '_' and name != 'explain']
        assert len(verbs) == 17 and all(callable(getattr(learn, name)) for name in verbs), verbs
        assert type(Learner(torch.nn.Linear(2, 1), display='text').display).__name__ == 'Display'"""
    subprocess.run([sys.executable, '-c', code, tmp_path/'all.pt'], check=True)

def test_import_is_light():
    code = 'import sys, torch\nbefore = {*sys.modules}\nimport trainer_nb.all\nprint(*{*sys.modules} - before)'
    loaded = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, check=True).stdout.split()
    assert len(loaded) > 50 and not [o for o in loaded if o.startswith(tuple(HEAVY))]

FOREIGN = {     # private names of other packages, and of Python
    '_replace', '_fields', '_asdict', '_exit', '_getframe', '_repr_png_', '_repr_html_', '_render_traceback_',
    '_allow_stdin', '_create_subshell', '_reply_subshell_for', '_reset_state', '_update_count', '_computed',
    '_no_split_modules', '_trial_id'}

def test_one_module_knows_private_names_of_torch():
    "All others read only private attributes that some module here defines, also by `getattr`"
    used, defined = set(), {*FOREIGN}
    for name, tree in trees.items():
        for o in ast.walk(tree):
            if isinstance(o, (ast.FunctionDef, ast.ClassDef)): defined.add(o.name)
            if isinstance(o, ast.Name) and isinstance(o.ctx, ast.Store): defined.add(o.id)
            if isinstance(o, ast.Attribute) and not isinstance(o.ctx, ast.Load): defined.add(o.attr)
            if isinstance(o, ast.Attribute): used.add((name, o.attr))
            if isinstance(o, ast.Call) and ast.unparse(o.func) in ('getattr', 'hasattr', 'setattr'):
                used |= {(name, a.value) for a in o.args[1:2] if isinstance(a, ast.Constant)}
    private = {(name, o) for name, o in used if re.match('_[a-z]', str(o)) and name != 'base.torch_private'}
    assert not {(name, o) for name, o in private if o not in defined}
