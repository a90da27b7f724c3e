"A comparison in JupyterLab and Notebook 7: live, its lines switched by clicks, also without a kernel"
import json, shutil, time

from browser.conftest import lab_first
from shown import check_readable

START = '''import json, os, sys, time
from pathlib import Path
from trainer_nb.all import compare
from trainer_nb.runs.folder import RunFolder
from trainer_nb.runs.process import now_here
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
LINE = 'i => getComputedStyle(nb.area(0).querySelector(`svg path.l-${i}`)).stroke'
TABLE = '() => nb.area(0).querySelector("tbody").innerText'
GREY = 'rgb(136, 136, 136)'

def middle(page, row, cell=2):
    "Where the middle of a cell is, in the row of a run"
    return page.js('([i, j]) => { const rows = [...nb.area(0).querySelectorAll("tbody tr")];'
                   ' const o = rows.find(o => o.innerText.includes(`run${i}`)).children[j];'
                   ' o.scrollIntoView({block: "nearest"}); const b = o.getBoundingClientRect();'
                   ' return [b.x + b.width/2, b.y + b.height/2] }', [row, cell])

def click(page, row, cell=2): page.page.mouse.click(*middle(page, row, cell))

def is_grey(page, i): page.until(f'([i, grey]) => ({LINE})(i) == grey', [i, GREY])

def is_coloured(page, i): page.until(f'([i, grey]) => ({LINE})(i) != grey', [i, GREY])

def switch(page, i, cell=2):
    "Click: the line changes its colour"
    before = page.js(LINE, i)
    click(page, i, cell)
    page.until(f'([i, before]) => ({LINE})(i) != before', [i, before])

def switch_slowly(page, i, cell=2):
    "Press, wait until the table is drawn anew, and release: the line changes its colour"
    before, table = page.js(LINE, i), page.js(TABLE)
    page.page.mouse.move(*middle(page, i, cell))
    page.page.mouse.down()
    page.until(f'before => ({TABLE})() != before', table)
    page.page.mouse.up()
    page.until(f'([i, before]) => ({LINE})(i) != before', [i, before])

def steer(page, i, label, what):
    "A click on the button in the row of a run asks the run"
    _, y = middle(page, i)
    place = page.js('''([label, y]) => [...nb.area(0).querySelectorAll(".steer button")]
        .map(o => [o, o.getBoundingClientRect()]).filter(([o, b]) => o.innerText == label && b.y < y && y < b.bottom)
        .map(([_, b]) => [b.x + 5, b.y + 5])[0]''', [label, y])
    page.page.mouse.click(*place)
    folder = page.jupyter.root/f'compared/run{i}/requests'
    end = time.monotonic() + 20
    while not any(json.loads(o.read_text())['what'] == what for o in folder.glob('*.json')):
        assert time.monotonic() < end

@lab_first
def test_compare(page):
    shutil.rmtree(page.jupyter.root/'compared', ignore_errors=True)
    page.cells(START, MORE, END)
    page.run()
    page.until('() => !!nb.area(0).querySelector("svg path.l-1")')
    assert '2 of them live' in page.text()
    for i in range(3):                  # the row under the mouse makes its line thick
        page.page.mouse.move(*middle(page, i))
        page.until('i => getComputedStyle(nb.area(0).querySelector(`svg path.l-${i}`)).strokeWidth == "4px"', i)
    switch(page, 1)
    is_grey(page, 1)
    is_coloured(page, 2)
    steer(page, 1, 'Pause', 'pause')
    steer(page, 2, 'Stop', 'stop')
    page.start(1)                       # the next cell computes, new points come
    before = page.js('() => nb.area(0).querySelector("svg").outerHTML')
    page.until('before => nb.area(0).querySelector("svg").outerHTML != before', before)
    is_grey(page, 1)                    # the click holds
    switch(page, 2, 0)
    is_grey(page, 2)                    # also while the kernel is busy
    switch_slowly(page, 1)
    is_coloured(page, 1)                # a table that is drawn between press and release takes no click away
    page.wait()
    page.save()
    page.open()                         # the page is loaded again
    page.until('() => !!nb.area(0).querySelector("svg path.l-1")')
    page.run(2)
    page.run(2)
    page.cells(START.replace("'running' if i else 'done'", "'done'"))
    page.run()
    page.until('() => nb.area(0).innerText.includes("3 runs") && !nb.area(0).innerText.includes("live")')
    check_readable([o for o in page.js('k => nb.contrasts(k)', 0) if o[0] != '●'])
    freed = page.js(LINE, 0)
    click(page, 0)
    is_grey(page, 0)
    is_coloured(page, 1)
    click(page, 2)
    is_grey(page, 2)
    click(page, 2)
    page.until(f'([i, freed]) => ({LINE})(i) == freed', [2, freed])     # the first free colour
    is_grey(page, 0)
    page.page.mouse.move(*page.js('''() => {
        const b = nb.area(0).querySelector(".whole .tnb-hover").getBoundingClientRect();
        return [b.x + b.width/2, b.y + 20] }'''))
    said = page.js('''() => { const o = nb.area(0).querySelector(".whole .tnb-hover>i:hover");
                   return getComputedStyle(o, "::after").content }''')
    assert 'optimizer step' in said and 'run1' in said
    assert not page.js('() => nb.area(0).querySelector(".last").clientHeight')
    page.page.click('.jp-OutputArea .zoom input')
    page.until('() => nb.area(0).querySelector(".last").clientHeight')
    assert not page.js('() => nb.area(0).querySelector(".whole").clientHeight')
    output, = page.outputs()
    assert set(output['data']) == {'text/html', 'text/plain'} and len(json.dumps(output)) < 200_000
    assert page.js('() => nb.area(0).querySelector("img").clientHeight') == 0
