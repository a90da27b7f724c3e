"What is published: an sdist and a wheel, and the wheel trains where nothing of ours was installed before."
import os, re, shutil, subprocess, sys, tarfile, venv
from importlib.metadata import version
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
learn = Learner(torch.nn.Linear(4, 2), (x, y), (x, y), loss_fn=torch.nn.functional.cross_entropy, lr=.1,
                metrics=[accuracy], seed=0)
learn.fit(3)
first, *_, last = learn.history.epochs['valid_loss']
assert last < first, (first, last)
learn.history.plot()
assert not [o for o in ('nbdev', 'execnb', 'fasthtml') if find_spec(o)]
'''

def run(*cmd, cwd): subprocess.run(cmd, cwd=cwd, env=env, check=True)

@pytest.fixture(scope='module')
def dist(tmp_path_factory):
    "A folder with the sdist, and the wheel that was built from it"
    src = tmp_path_factory.mktemp('dist')/'src'
    unwanted = '.*', '__pycache__', '*.egg-info', '_docs', '_proc', 'build', 'dist', 'demo'
    shutil.copytree(root, src, ignore=shutil.ignore_patterns(*unwanted))
    run(sys.executable, '-m', 'build', '-o', src.parent, src, cwd=src.parent)
    return src.parent

def test_contents(dist):
    wheel, = dist.glob('*.whl')
    names = {*ZipFile(wheel).namelist()}
    modules = {o.relative_to(root).as_posix() for o in root.glob('trainer_nb/**/*.py')} - {'trainer_nb/_modidx.py'}
    assert {o for o in names if not o.startswith('trainer_nb-')} == modules | {'trainer_nb/py.typed'}
    assert not any(o.endswith('entry_points.txt') for o in names)       # of nbdev, into the module that is left out
    assert {o.split('/')[0].split('-')[0] for o in names} == {'trainer_nb'}     # no nbs, no tests
    assert any(o.endswith('licenses/LICENSE') for o in names)
    sdist, = dist.glob('*.tar.gz')
    with tarfile.open(sdist) as f: names = {o.split('/')[-1] for o in f.getnames()}
    assert {'settings.ini', 'LICENSE', 'README.md'} <= names

def test_links_of_the_description_leave_the_package_index(dist):
    wheel, = dist.glob('*.whl')
    with ZipFile(wheel) as f: text = f.read(f'trainer_nb-{version("trainer_nb")}.dist-info/METADATA').decode()
    links = re.findall(r'\]\((.*?)\)', text)
    ours = [o.split('/', 7)[5:] for o in links if re.search('/(raw|blob)/', o)]
    assert all(o.startswith('https://') for o in links) and all((root/path).is_file() for _, _, path in ours)
    assert ['raw', f'v{version("trainer_nb")}', 'nbs/_static/live.webp'] in ours and len(ours) > 3

def test_trains_in_a_clean_environment(dist, tmp_path):
    """With the newest versions of what it needs; torch, 700 MB, is not installed again: the environment finds links to
    this one's in a folder outside of it, which pip never changes
    """
    wheel, = dist.glob('*.whl')
    venv.create(tmp_path/'venv', with_pip=True)
    python, site = tmp_path/'venv/bin/python', next(tmp_path.glob('venv/lib/python*/site-packages'))
    links, constraints = tmp_path/'links', tmp_path/'constraints.txt'
    links.mkdir()
    for d in Path(torch.__file__).parents[1].glob('*torch*'):
        if d.name in ('torch', 'torchgen', 'functorch') or d.match('torch-*.dist-info'): (links/d.name).symlink_to(d)
    (site/'links.pth').write_text(f'{links}\n')
    constraints.write_text(f'torch=={version("torch")}\n')
    run(python, '-m', 'pip', 'install', '-q', '--no-compile', '-c', constraints, wheel, cwd=tmp_path)
    assert not (site/'torch').exists()
    run(python, '-c', TRAIN, cwd=tmp_path)
