"""Type checkers and completion see what there is, also the verbs that one module adds to a class of another

`make lint` checks `typed_script.py`, which uses them all, the stubs, and that they are those of the modules.
"""
import os, subprocess, sys
from pathlib import Path

root = Path(__file__).parents[1]
script = root/'tests/typed_script.py'


def mypy(*args):
    "What `mypy --strict` says of a file or a package, with the cache of `make lint`"
    cmd = [sys.executable, '-m', 'mypy', *map(str, args)]
    res = subprocess.run(cmd, cwd=root, env={**os.environ, 'MYPYPATH': '.'}, text=True, capture_output=True)
    return [line for line in res.stdout.splitlines() if 'error:' in line] + res.stderr.splitlines()


MISTAKES = [    # (of the script, changed to, what mypy says)
    ('learn.fit(2, valid_every=3', 'learn.fit(epochs=2, valid_every=3',
     'Unexpected keyword argument "epochs" for "fit"'),
    ('learn.lr_find()', 'learn.lrfind()', '"Learner" has no attribute "lrfind"'),
    ('learn.state.epoch > 3', 'learn.state.epochs > 3', '"StepState" has no attribute "epochs"'),
    ("config={'note': 'typed'}", 'callbacks=[]', 'Unexpected keyword argument "callbacks" for "Learner"'),
]

def test_mistakes_are_told(tmp_path):
    text, paths = script.read_text(encoding='utf-8'), []
    for i, (right, wrong, _) in enumerate(MISTAKES):
        assert text.count(right) == 1
        paths.append(tmp_path/f'script_{i}.py')
        paths[-1].write_text(text.replace(right, wrong), encoding='utf-8')
    errors = mypy(*paths)
    assert len(errors) == len(MISTAKES)
    for path, (_, _, told) in zip(paths, MISTAKES):
        [error] = [o for o in errors if path.name in o]
        assert told in error
