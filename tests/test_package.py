"What is published: an sdist and a wheel, and the wheel trains where nothing of ours was installed before."
import os, shutil, subprocess, sys, tarfile, venv
from pathlib import Path
from zipfile import ZipFile

import pytest, torch

root = Path(__file__).parents[1]
env = {k: v for k, v in os.environ.items() if k not in ('IN_TEST', 'PYTHONPATH')}

TRAIN = '''
from importlib.util import find_spec
import torch
from trainer_nb.all import Learner, accuracy

torch.manual_seed(0)
x = torch.randn(256, 4)
y = (x.sum(1) > 0).long()
learn = Learner(torch.nn.Linear(4, 2), (x, y), (x, y), loss_fn=torch.nn.functional.cross_entropy, lr=.1, metrics=[accuracy], seed=0)
learn.fit(3)
first, *_, last = learn.history.epochs['valid_loss']
assert last < first, (first, last)
learn.history.plot()
assert not find_spec('nbdev') and not find_spec('execnb')
'''


def run(*cmd, cwd): subprocess.run(cmd, cwd=cwd, env=env, check=True)


@pytest.fixture(scope='module')
def dist(tmp_path_factory):
    "A folder with the sdist, and the wheel that was built from it"
    src = tmp_path_factory.mktemp('dist')/'src'
    shutil.copytree(root, src, ignore=shutil.ignore_patterns('.*', '__pycache__', '*.egg-info', '_docs', '_proc', 'build', 'dist', 'demo'))
    run(sys.executable, '-m', 'build', '-o', src.parent, src, cwd=src.parent)
    return src.parent


def test_contents(dist):
    wheel, = dist.glob('*.whl')
    names = {o for o in ZipFile(wheel).namelist()}
    assert {'trainer_nb/__init__.py', 'trainer_nb/all.py', 'trainer_nb/_modidx.py', 'trainer_nb/py.typed'} <= names
    assert {o.split('/')[0].split('-')[0] for o in names} == {'trainer_nb'}     # no nbs, no tests
    assert any(o.endswith('licenses/LICENSE') for o in names)
    sdist, = dist.glob('*.tar.gz')
    with tarfile.open(sdist) as f: assert {'settings.ini', 'LICENSE', 'README.md'} <= {o.split('/')[-1] for o in f.getnames()}


def test_trains_in_a_clean_environment(dist, tmp_path):
    "With the newest of what it needs, not with what the development tools hold back; torch as in constraints.txt"
    wheel, = dist.glob('*.whl')
    venv.create(tmp_path/'venv', with_pip=True)
    python, site = tmp_path/'venv/bin/python', next(tmp_path.glob('venv/lib/python*/site-packages'))
    for d in Path(torch.__file__).parents[1].glob('*torch*'):       # torch itself is 700 MB, and is the same: it is not unpacked again
        if d.name in ('torch', 'torchgen', 'functorch') or d.match('torch-*.dist-info'): (site/d.name).symlink_to(d)
    run(python, '-m', 'pip', 'install', '-q', '--no-compile', '-c', root/'constraints.txt', wheel, cwd=tmp_path)
    run(python, '-c', TRAIN, cwd=tmp_path)
