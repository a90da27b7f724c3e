"The table of runs, notes, tags, deletion, and the card of a run"
import re, time

import pytest

from test_compare import append, made, make_run
from test_runs import plant
from trainer_nb.all import Run, runs
from trainer_nb.runs.folder import RunFolder

BAD = '<img src=x onerror=alert(1)>|`x`\n# [a](javascript:b)'

@pytest.fixture
def three(tmp_path):
    for i, (lr, scale) in enumerate([(.1, 3.), (.03, 1.), (.3, 2.)]):
        make_run(tmp_path/f'run{i}', made(i, scale=scale), created=time.time() - 100*i, settings={'lr': lr, 'bs': 8})
    return tmp_path

def test_table_sorts_by_any_column(three):
    def names(*args, **kwargs): return [o['run'] for o in runs(three).sort(*args, **kwargs).rows]
    assert [o['run'] for o in runs(three).rows] == ['run0', 'run1', 'run2']
    assert names('best valid_loss') == ['run1', 'run2', 'run0'] == [o.path.name for o in runs(three, 'best valid_loss')]
    assert names('lr', reverse=True) == ['run2', 'run0', 'run1'] and names('run', reverse=True)[0] == 'run2'
    for i, n in enumerate([20, 3, None]):
        folder = RunFolder(three/f'run{i}')
        folder.write('status.json', {**folder.read('status.json'), 'end_epoch': n})
    append(RunFolder(three/'run1'), '{"kind": "epoch", "batch": 999, "epoch": 9}')
    assert [runs(three, 'epochs').rows[i]['epochs'] for i in range(3)] == ['5/20', '5', '10/3']
    make_run(three/'run3', made(1, n_epochs=1)).write('run.json', {'created': 'x'})
    (three/'run3'/'record'/'log.jsonl').unlink()
    assert names('best valid_loss')[-1] == names('best valid_loss', reverse=True)[-1] == 'run3'
    with pytest.raises(ValueError, match='Did you mean `best valid_loss`'): runs(three).sort('valid_loss')

def test_table_shows_curve_size_and_notes(three):
    runs(three)[1].note('a note')
    runs(three)[1].tag('good')
    row = runs(three).rows[1]
    assert set(row['loss']) <= set('▁▂▃▄▅▆▇█') and len(row['loss']) == 5
    assert (row['note'], row['tags']) == ('a note', 'good')
    (three/'run1'/'big').write_bytes(bytes(3*10**6))
    (three/'run1'/'link').symlink_to('/proc')
    assert runs(three).rows[1]['size'].startswith('3.')

def test_one_damaged_number_does_not_hide_the_other_runs(three):
    for name in 'created', 'first_batch', 'first_row':
        for n in '1' + '0'*400, '1e999', '"x"', 'null', '[]':
            (three/'run1'/'run.json').write_text(f'{{"{name}": {n}}}')
            assert len(runs(three).rows) == 3 and 'run1' in repr(runs(three)) and Run(three/'run1').card().markdown

def test_deletion_asks(three, monkeypatch):
    run = Run(three/'run0')
    monkeypatch.setattr('trainer_nb.runs.run._is_attended', lambda: True)
    for reply, is_gone in ('', False), ('n', False), ('Y', True):
        monkeypatch.setattr('builtins.input', lambda text: reply)
        assert run.delete() is is_gone and (three/'run0').exists() is not is_gone
    with pytest.raises(RuntimeError, match='holds no run'): run.delete(yes=True)
    (three/'link').symlink_to(three/'run1')
    with pytest.raises(RuntimeError, match='is a link'): Run(three/'link').delete(yes=True)
    (three/'run1'/'out').symlink_to(three/'run2')
    assert Run(three/'run1').delete(yes=True) and (three/'run2'/'run.json').exists()

def test_tags(three):
    run = Run(three/'run0')
    assert run.tags == [] and run.tag('a', 'b c') == ['a', 'b c'] and run.tag('a') == ['a', 'b c']
    assert Run(three/'run0').untag('a') == ['b c'] and run.note() == ''
    for wrong in 'a, b', '', 3:
        with pytest.raises(ValueError, match='is no tag'): run.tag(wrong)
    for text in '[]', '{"tags": 3, "note": []}', '{"tags": [3, "x"]}', 'x':
        (three/'run0'/'notes.json').write_text(text)
        assert run.note() == '' and run.tags in ([], ['x'])

def test_card_is_escaped_and_executes_nothing(tmp_path):
    folder = make_run(tmp_path/'a', made(1, metric='<b>'), settings={BAD: BAD}, data={'train': BAD}, versions=[3],
                      environment={'device': BAD}, first_row='x')
    folder.write('run.json', {**folder.read('run.json'), 'name': BAD})
    plant(folder, tmp_path/'executed')
    run = Run(folder.path)
    run.note(BAD)
    card = run.card()
    assert '<img src=x' not in card.html and '&lt;b&gt;' in card.html
    assert not re.search(r'(?<!\\)<img|(?<!\\)\[a\]', card.markdown) and not (tmp_path/'executed').exists()
    rows = [line for line in card.markdown.splitlines() if line.startswith('|')]
    heads = {re.sub(r'\\\|', '', o).count('|') for o in rows if 'onerror' in o}
    assert heads == {3}
    card.save(tmp_path/'card.md')
    assert '![losses and metrics](card.png)' in (tmp_path/'card.md').read_text()
    with pytest.raises(ValueError, match='.md or .html'): card.save(tmp_path/'card.txt')
    (kept := tmp_path/'kept').write_text('mine')
    for name in 'b.md', 'b.png', 'c.html': (tmp_path/name).symlink_to(kept)
    for name in 'b.md', 'c.html': card.save(tmp_path/name)      # a link there is replaced, not followed
    assert kept.read_text() == 'mine' and (tmp_path/'b.png').read_bytes()[:4] == b'\x89PNG'
