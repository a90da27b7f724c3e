"""Type checkers and completion see what there is: all public signatures are annotated, and a typed program is checked

`make lint` checks `typed_script.py`, which uses all verbs, with `mypy --strict`.
"""
import ast, os, subprocess, sys
from importlib import import_module
from pathlib import Path


root = Path(__file__).parents[1]
script = root/'tests/typed_script.py'

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
    assert len(found) > 300
    wrong = [f'{name}: {", ".join(what)}' for name, what in found.items() if what]
    assert not wrong, '\n'.join([f'{len(wrong)} signatures', *wrong])

MISTAKES = [    # of the script, changed to, what mypy says
    ('learn.fit(2, valid_every=3', 'learn.fit(epochs=2, valid_every=3',
     'Argument "epochs" to "fit" of "Learner" has incompatible type "int"; expected "Never"'),
    ('learn.lr_find()', 'learn.lrfind()', '"Learner" has no attribute "lrfind"'),
    ('learn.state.epoch > 3', 'learn.state.epochs > 3', '"StepState" has no attribute "epochs"'),
    ("config={'note': 'typed'}", 'callbacks=[]', 'Argument "callbacks" to "Learner" has incompatible type'),
]

def test_a_typed_program_is_checked(tmp_path):
    text, paths = script.read_text(encoding='utf-8'), [script]
    for i, (right, wrong, _) in enumerate(MISTAKES):
        assert text.count(right) == 1
        paths.append(tmp_path/f'script_{i}.py')
        paths[-1].write_text(text.replace(right, wrong), encoding='utf-8')
    cmd, env = [sys.executable, '-m', 'mypy', *map(str, paths)], {**os.environ, 'MYPYPATH': '.'}
    done = subprocess.run(cmd, cwd=root, env=env, text=True, capture_output=True)      # with the cache of `make lint`
    errors = [line for line in done.stdout.splitlines() if 'error:' in line] + done.stderr.splitlines()
    assert len(errors) == len(MISTAKES), errors
    for path, (_, _, message) in zip(paths[1:], MISTAKES):
        [error] = [o for o in errors if path.name in o]
        assert message in error
