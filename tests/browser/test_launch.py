"A fit in several processes, started in a cell: live like any other, stopped by the button, and leaving nothing"
import json

from fits import N_EPOCHS
from shown import check_outputs

LAUNCH = '''learn = start(step_s=.02)
learn.launch(2, {n})'''
SEEN = '''import json, psutil, torch
print(json.dumps({'children': [o.pid for o in psutil.Process().children()], 'cancelled': learn.cancelled,
                  'epochs': learn.state.epoch, 'steps': len(learn.history.steps['train_loss']),
                  'group': torch.distributed.is_initialized(), 'error': str(learn.display.error),
                  'draws': learn.display.budget.n}))'''
SVG = 'querySelector(\'img[src^="data:image/svg"]\')'       # the live picture

def seen(page, k):
    page.run(k)
    return json.loads(page.text(k))

def test_launched_and_stopped(page):
    page.cells(LAUNCH.format(n=10**4), SEEN, 'learn.launch(2)', 'import os\nprint(os.getpid())')
    page.run(3)
    pid = int(page.text(3))
    page.start()
    page.until('nb.area(0)?.querySelector("td")')       # an epoch is done
    before = page.js(f'nb.area(0).{SVG}.outerHTML')
    page.until(f'before => nb.area(0).{SVG}.outerHTML != before', before)
    assert children(pid) == 1
    page.interrupt()
    page.wait()
    check_outputs(page.outputs(), 'interrupted', None, 'TrainingInterrupted')
    assert page.text().strip().splitlines()[-1].endswith('; learn.launch(2) continues')
    assert 'Traceback' not in page.text()
    first = seen(page, 1)
    assert first['children'] == [] and first['cancelled'] == 'interrupt' and first['steps']
    assert not first['group'] and first['error'] == 'None' and first['draws']
    assert not children(pid)
    page.start(2)
    page.until(f'nb.area(2)?.{SVG}')
    before = page.js(f'nb.area(2).{SVG}.outerHTML')
    page.until(f'before => nb.area(2).{SVG}.outerHTML != before', before)
    page.interrupt()
    page.wait()
    check_outputs(page.outputs(2), 'interrupted', None, 'TrainingInterrupted')
    second = seen(page, 1)
    assert second['steps'] > first['steps'] and second['children'] == []

def children(pid):  # int
    import psutil
    return sum(o.status() != psutil.STATUS_ZOMBIE for o in psutil.Process(pid).children())

def test_launched_to_its_end(page):
    page.cells(LAUNCH.format(n=N_EPOCHS), SEEN)
    page.run()
    check_outputs(page.outputs())
    last = seen(page, 1)
    assert last['children'] == [] and last['cancelled'] is None and last['epochs'] == N_EPOCHS
    assert last['error'] == 'None'
