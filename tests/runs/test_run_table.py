"The table of runs, deletion, and what `print` says of a run"
import time

import pytest

from test_compare import made, make_run
from trainer_nb.all import Run, runs

@pytest.fixture
def three(tmp_path):
    for i, (lr, scale) in enumerate([(.1, 3.), (.03, 1.), (.3, 2.)]):
        make_run(tmp_path/f'run{i}', made(i, scale=scale), created=time.time() - 100*i, settings={'lr': lr, 'bs': 8})
    return tmp_path

def names(table): return [o['run'] for o in table.values]

def test_table_shows_notes_and_later_runs(three):
    make_run(three/'run1', made(1), created=time.time() - 100, settings={'lr': .03, 'config': {'note': 'a note'}})
    other, row, _ = runs(three).values
    assert (row['note'], other['note']) == ('a note', '') and 'config.note' not in row
    assert 'note' in runs(three).rows()[0] and 'note' not in runs(three.parent).rows()[0]
    table = runs(three, 'lr')
    make_run(three/'run3', made(3), 'running', created=1., settings={'lr': .2, 'bs': 9})
    make_run(three/'run0', made(3), created=2., settings={'lr': .9, 'bs': 8})       # in the place of another one
    assert table.update() and names(table) == ['run1', 'run3', 'run2', 'run0'] and table[1].path == three/'run3'
    assert table.rows()[2][table.rows()[0].index('bs')] == '9' and table.look()

def test_deletion_ends_at_the_folder(three):
    run = Run(three/'run0')
    run.delete()
    assert not run.path.exists()
    with pytest.raises(RuntimeError, match='holds no run'): run.delete()
    (three/'link').symlink_to(three/'run1')
    with pytest.raises(OSError, match='symbolic link'): Run(three/'link').delete()
    (three/'run1'/'out').symlink_to(three/'run2')
    Run(three/'run1').delete()
    assert not (three/'run1').exists() and (three/'run2'/'run.json').exists()
    (live := Run(three/'run2')).folder.write('status.json', {'state': 'running', 'host': 'b', 'heartbeat': 4e9})
    with pytest.raises(RuntimeError, match='is running: stop it'): live.delete()

def test_print_says_in_1_kB_where_a_run_stands(three):
    "However many columns and epochs, however wild the losses"
    for i, n_epochs in enumerate([1, 50]):
        (h := made(i, n_epochs=n_epochs)).flags = [[j, f'lr × 2 → {j}'] for j in range(30)]
        h.epoch_rows[-1].update({f'valid_{"score"*9}{j}': j/7 for j in range(40)}, train_loss=1e9)
        text = str(Run(make_run(three/f'long{i}', h).path))
        assert len(text.encode()) < 1000 and f'latest: epoch {n_epochs - 1}' in text
        assert len(str(h).encode()) < 1000 and 'batch 29: lr × 2' in str(h)
    assert 'valid_loss of the latest epochs: ' in text and 'holds no run' in str(Run(three/'nothing'))
