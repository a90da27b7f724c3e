"""The package as it was before it was written anew, beside this one: programs made at random leave the same

The old one comes from the repository's history, and runs in a process of its own, as the new one does.
"""
import os, re, subprocess, sys
from math import isclose
from pathlib import Path

import pytest, torch
from torch import Tensor

tests = Path(__file__).parent
OLD = '755bb00b'
CLOSE = 'steps', 'epochs', 'values'         # means within 1e-9; all else is equal bit for bit
# Changed by name: accuracy is computed in each batch, no longer of 32 small ones at once; a batch's is float32
ROUNDED = re.compile('.*(accuracy|right)')

def equal(a, b, tolerance=0.):
    if isinstance(a, Tensor): return isinstance(b, Tensor) and a.dtype == b.dtype and a.equal(b)
    if isinstance(a, dict):
        near = {k: 1e-7 if tolerance and ROUNDED.fullmatch(k) else tolerance for k in a}
        return isinstance(b, dict) and [*a] == [*b] and all(equal(a[k], b[k], near[k]) for k in a)
    if isinstance(a, (list, tuple)): return len(a) == len(b) and all(equal(x, y, tolerance) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float): return isclose(a, b, rel_tol=tolerance) or a != a and b != b
    return a == b

def differences(old, new):  # names of what differs
    if 'error' in old or 'error' in new: return [] if old.get('error') and new.get('error') else ['error']
    return [k for k in old if not equal(old[k], new[k], 1e-9 if k in CLOSE else 0.)]

@pytest.fixture(scope='module')
def old(tmp_path_factory):
    "Folder of the old package"
    folder = tmp_path_factory.mktemp('old')
    command = ['git', '-C', str(tests.parent), 'archive', OLD, 'trainer_nb']
    made = subprocess.run(command, capture_output=True)
    if made.returncode: pytest.skip(f'{OLD} is not in the history of this checkout')
    subprocess.run(['tar', 'x', '-C', str(folder)], input=made.stdout, check=True)
    return folder

def run(package, file, first, n):
    theirs = {**os.environ, 'PYTHONPATH': str(package), 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, str(tests/'old_and_new.py'), str(file), str(first), str(n)]
    return subprocess.Popen(command, env=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

@pytest.mark.parametrize('first, n', [
    (0, 20), *[pytest.param(i, 20, marks=pytest.mark.soak) for i in range(20, 200, 20)]])
def test_random_programs_leave_the_same(old, tmp_path, first, n):
    packages = {'old': old, 'new': tests.parent}
    children = {k: run(package, tmp_path/k, first, n) for k, package in packages.items()}
    for child in children.values():
        _, said = child.communicate(timeout=600)
        assert child.returncode == 0, said
    found = {k: torch.load(tmp_path/k) for k in packages}
    for k, package in packages.items(): assert Path(found[k].pop('')) == package
    wrong = {seed: differences(o, found['new'][seed]) for seed, o in found['old'].items()}
    wrong = {seed: (names, found['new'][seed].get('error', '')) for seed, names in wrong.items() if names}
    n_failed = sum('error' in o for o in found['old'].values())
    print(f'{n} programs, {n_failed} of which raise an error in both, {len(wrong)} of which differ')
    assert not wrong and n_failed <= n//10, wrong

def test_a_difference_is_seen():
    nan = float('nan')
    one = {'weights': [torch.ones(3)], 'rates': {'lr': [.1]}, 'epochs': {'train_loss': [1., nan]},
           'counters': [1, 'stop']}
    def other(**changes): return differences(one, {**one, **changes})
    assert not other() and not other(epochs={'train_loss': [1 + 1e-12, nan]})
    assert other(weights=[torch.tensor([1., 1., 1 + 2**-23])]) == ['weights']
    assert other(rates={'lr': [.1 + 1e-16]}) == ['rates']
    assert other(epochs={'train_loss': [1 + 1e-8, nan]}) == ['epochs']
    assert other(epochs={'train_accuracy': [1., nan]}) == ['epochs']
    assert other(counters=[1, '']) == ['counters']
    assert other(error='ValueError') == ['error']
