"The table of runs, and deletion"
import time

import pytest

from test_compare import append, made, make_run
from trainer_nb.all import Run, runs
from trainer_nb.runs.folder import RunFolder

@pytest.fixture
def three(tmp_path):
    for i, (lr, scale) in enumerate([(.1, 3.), (.03, 1.), (.3, 2.)]):
        make_run(tmp_path/f'run{i}', made(i, scale=scale), created=time.time() - 100*i, settings={'lr': lr, 'bs': 8})
    return tmp_path

def test_table_sorts_by_any_column(three):
    def names(*args, **kwargs): return [o['run'] for o in runs(three).sort(*args, **kwargs).values]
    assert [o['run'] for o in runs(three).values] == ['run0', 'run1', 'run2']
    assert names('best valid_loss') == ['run1', 'run2', 'run0'] == [o.path.name for o in runs(three, 'best valid_loss')]
    assert names('lr', reverse=True) == ['run2', 'run0', 'run1'] and names('run', reverse=True)[0] == 'run2'
    for i, n in enumerate([20, 3, None]):
        folder = RunFolder(three/f'run{i}')
        folder.write('status.json', {**folder.read('status.json'), 'end_epoch': n})
    append(RunFolder(three/'run1'), '{"kind": "epoch", "batch": 999, "epoch": 9}')
    assert [o['epochs'] for o in runs(three, 'epochs').values] == ['5/20', '5', '10/3']
    make_run(three/'run3', made(1, n_epochs=1)).write('run.json', {'created': 'x'})
    (three/'run3'/'record'/'log.jsonl').unlink()
    assert names('best valid_loss')[-1] == names('best valid_loss', reverse=True)[-1] == 'run3'
    with pytest.raises(ValueError, match='Did you mean `best valid_loss`'): runs(three).sort('valid_loss')

def test_table_shows_curve_and_notes(three):
    folder = RunFolder(three/'run1')
    info = folder.read('run.json')
    folder.write('run.json', {**info, 'settings': {**info['settings'], 'config': {'note': 'a note'}}})
    other, row, _ = runs(three).values
    assert (row['note'], other['note']) == ('a note', '') and 'config.note' not in row
    assert 'note' in runs(three).rows()[0] and 'note' not in runs(three.parent).rows()[0]
    assert set(row['loss']) <= set('▁▂▃▄▅▆▇█') and len(row['loss']) == 5

def test_a_later_run_comes_into_its_place(three):
    "Also one that takes the place of another one"
    table = runs(three, 'lr')
    make_run(three/'run3', made(3), created=1., settings={'lr': .2, 'bs': 9})
    make_run(three/'run0', made(3), created=2., settings={'lr': .9, 'bs': 8})
    assert table.update() and [o['run'] for o in table.values] == ['run1', 'run3', 'run2', 'run0']
    assert table[1].path == three/'run3' and table.rows()[2][table.rows()[0].index('bs')] == '9' and not table.look()
    make_run(three/'run4', made(3), state='running')
    table.update()
    assert table.look() and table.values[-1]['run'] == 'run4'

def test_one_damaged_number_does_not_hide_the_other_runs(three):
    for name in 'created', 'first_batch', 'first_row':
        for n in '1' + '0'*400, '1e999', '"x"', 'null', '[]':
            (three/'run1'/'run.json').write_text(f'{{"{name}": {n}}}')
            assert len(runs(three)) == 3 and 'run1' in repr(runs(three))
    (three/'run1'/'run.json').write_text('{"settings": ' + '{"a":'*900 + '1' + '}'*901)
    assert len(runs(three)) == 3

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
        assert len(str(h).encode()) < 1000 and 'after batch 29: lr × 2 → 29' in str(h)
    assert 'valid_loss of the latest epochs: ' in text and str(Run(three/'nothing')).endswith('the folder holds no run')
