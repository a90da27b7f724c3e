"A fit in several processes, started in a cell: live like any other, stopped by the button, and leaving nothing"
import json

import psutil

from shown import check_outputs

LAUNCH = 'learn = start(step_s=.02)\nlearn.launch(2, 10**4)'
SEEN = '''import json, psutil, torch
print(json.dumps({'children': [o.pid for o in psutil.Process().children()], 'cancelled': learn.cancelled,
                  'steps': len(learn.history.steps['train_loss']), 'error': str(learn.display.error),
                  'group': torch.distributed.is_initialized(), 'draws': learn.display.budget.n}))'''

def children(pid):  # int
    return sum(o.status() != psutil.STATUS_ZOMBIE for o in psutil.Process(pid).children())

def moved_and_stopped(page, k, pid):
    "The picture in a cell moves while there is a second process; then the button is pressed"
    page.changes(k)
    assert children(pid) == 1
    page.interrupt()
    page.wait()
    check_outputs(page.outputs(k), 'interrupted', None, 'TrainingInterrupted')
    page.run(1)
    seen = json.loads(page.text(1))
    assert seen['children'] == [] and not children(pid) and not seen['group'] and seen['error'] == 'None'
    return seen

def test_launched_and_stopped(page):
    page.cells(LAUNCH, SEEN, 'learn.launch(2)', 'import os\nprint(os.getpid())')
    page.run(3)
    pid = int(page.text(3))
    page.start()
    page.until('nb.area(0)?.querySelector("td")')       # an epoch is done
    first = moved_and_stopped(page, 0, pid)
    assert page.text().strip().splitlines()[-1].endswith('; learn.launch(2) continues')
    assert 'Traceback' not in page.text()
    assert first['cancelled'] == 'interrupt' and first['steps'] and first['draws']
    page.start(2)
    assert moved_and_stopped(page, 2, pid)['steps'] > first['steps']
