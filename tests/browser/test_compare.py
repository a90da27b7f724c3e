"A comparison in JupyterLab and Notebook 7: live, and readable when all runs are over"
import json, shutil

from browser.conftest import lab_first
from browser.lab import PICTURE
from shown import check_readable

START = '''import json, os, sys, time
from pathlib import Path
from trainer_nb.all import compare
from trainer_nb.runs.folder import RunFolder
from trainer_nb.runs.engine import now_here
def beat(folder, state):
    data = {'state': state, **now_here(), 'heartbeat': time.time(), 'end': 4000, 'batch': 50}
    folder.write('status.json', data)
home = Path('compared')
for i in range(3):
    folder = RunFolder(home/f'run{i}')
    folder.make()
    folder.write('run.json', {'name': f'run{i}', 'settings': {'lr': .1*i, 'bs': 8}})
    beat(folder, 'running' if i else 'done')
def train(start, n):
    for i in range(3):
        with open(home/f'run{i}/record/log.jsonl', 'a') as f:
            for b in range(start + 1, start + n + 1):
                f.write(json.dumps({'kind': 'step', 'batch': b, 'train_loss': 2/(1 + b*(i + 1)/100)}) + '\\n')
            f.write(json.dumps({'kind': 'valid', 'batch': b, 'step': b, 'valid_loss': 2.1/(1 + b*(i + 1)/100)}) + '\\n')
train(0, 50)
compare(home)'''
MORE = '''for k in range(1, 12):
    train(50*k, 50)
    for i in (1, 2): beat(RunFolder(home/f'run{i}'), 'running')
    time.sleep(.3)'''
END = "for i in (1, 2): beat(RunFolder(home/f'run{i}'), 'done')"

@lab_first
def test_compare(page):
    shutil.rmtree(page.jupyter.root/'compared', ignore_errors=True)
    page.cells(START, MORE, END)
    page.run()
    page.until(PICTURE)
    assert '2 of them live' in page.text()
    page.start(1)                       # the next cell computes, new points come
    page.changes()
    page.wait()
    page.save()
    page.open()                         # the page is loaded again
    page.until(PICTURE)
    page.run(2)
    page.cells(START.replace("'running' if i else 'done'", "'done'"))
    page.run()
    page.until('() => nb.area(0).innerText.includes("3 runs") && !nb.area(0).innerText.includes("live")')
    check_readable([o for o in page.js('k => nb.contrasts(k)', 0) if o[0] != '●'])
    box = page.page.locator('.tnb-hover').first.bounding_box()
    page.page.mouse.move(box['x'] + box['width']/2, box['y'] + 20)
    said = page.js('nb.pointed')
    assert 'optimizer step' in said and 'run1' in said
    outputs, kinds = page.outputs(), {'text/html', 'text/plain'}
    assert [{*o['data']} for o in outputs] == [kinds, kinds | {'image/png'}, kinds]
    assert len(json.dumps(outputs)) < 200_000
