"What a fit looks like in JupyterLab and Notebook 7, in both themes: while it runs, when it is stopped, and afterwards"
import json, re, time
from itertools import product

import pytest
from nbconvert import HTMLExporter, MarkdownExporter

from browser.conftest import IN_TURN, PAGES, lab_first
from common import digest
from fits import N_EPOCHS, start
from shown import (check_dated, check_html, check_interrupted, check_markdown, check_notebook, check_outputs,
                   check_painted, check_readable, check_steady, check_visible)

FIT = 'learn.fit(N_EPOCHS)'
WAIT = f'learn = start(Wait(), step_s=.01)\n{FIT}'
AGAIN = 'learn.show()', 'learn.history'

def check_again(page, n_rows):
    "Both ways to see an interrupted fit again, in the next two cells"
    for i in 1, 2:
        page.run(i)
        check_outputs(page.outputs(i), 'interrupted', n_rows)

def has_rows(page, k=0): page.until('k => nb.area(k)?.querySelector("td")', k)


# A fit that nobody disturbs

@pytest.fixture(scope='module', params=IN_TURN, ids='-'.join)
def watched(jupyter, request):
    "A page, and what was seen of the fit in its only cell; another one was looked at in its midst"
    page = jupyter.page(*request.param)
    page.cells(f'from fits import *\n{WAIT}')
    page.start()
    has_rows(page)
    contrasts = page.js('nb.contrasts', 0)
    page.interrupt()
    page.wait()
    page.cells(f'learn = start(Pace())\n{FIT}')
    page.watch()
    page.run()
    page.until('nb.area(0).querySelector("img")?.naturalWidth')
    return {'page': page, 'contrasts': contrasts, **page.seen()}

def test_steady_and_never_blank(watched):
    check_steady(watched['looks'])
    check_painted(watched['looks'], watched['frames'], watched['page'].boxes())

def test_readable(watched):
    page = watched['page']
    check_readable(watched['contrasts'])
    check_readable(page.js('nb.contrasts', 0))
    check_visible(page.shot(0, 1))

def test_left_behind(watched):
    "In the saved notebook, its exports, and when it is opened again"
    page = watched['page']
    check_outputs(page.outputs())
    nb = page.save()
    check_outputs(nb.cells[0].outputs)
    check_notebook(nb)
    check_html(HTMLExporter().from_notebook_node(nb)[0])
    check_markdown(MarkdownExporter().from_notebook_node(nb)[0])
    before = page.text()
    page.open()
    assert page.text() == before


# How soon

GATES = '''from trainer_nb.show import display
display.Budget = Eager
def wait(name):
    time.sleep(.3)
    while not Path(name).exists(): time.sleep(.01)
# the first batch ends when somebody has seen a picture, the third one begins when somebody has seen it move
gates = LambdaHook(after_backward=lambda learn: learn.history.n_steps or wait('drawn'),
                   before_step=lambda learn: learn.history.n_steps == 2 and learn.training and wait('moved'))
start(gates).fit(1)'''

@lab_first
def test_a_picture_before_the_first_batch_is_done_that_moves_with_the_second(page):
    for name in 'drawn', 'moved': (page.jupyter.root/name).unlink(missing_ok=True)
    page.cells(GATES)
    page.start()
    page.until('nb.area(0)?.querySelector("img[src*=svg]")')
    assert 'batch 0/20' in page.text()
    (page.jupyter.root/'drawn').touch()
    page.until('nb.area(0).innerText.match(/batch [12].20/)')
    (page.jupyter.root/'moved').touch()
    page.wait()
    assert 'done: 1 epoch' in page.text()


# What it says while the machine is busy

BUSY = """import subprocess
log, others = [], [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(2)]
learn = start(LambdaHook(after_step=lambda learn: log.append((time.time(), learn.history.n_steps))), step_s=.015)
learn.fit({})
for o in others: o.kill()"""
LOOK = """() => ({time: Date.now()/1000, src: nb.area(0)?.querySelector('img')?.src,
                line: nb.parts(0)[0]?.innerText || '',
                last: [...nb.parts(0)[2]?.querySelectorAll('tbody td:first-child') || []].at(-1)?.innerText})"""
LINE = re.compile(r'epoch (\d+)/\d+ · (?:batch (\d+)|validating).*? · as of (\d\d:\d\d:\d\d)', re.S)

@pytest.mark.parametrize('n_epochs', [16, pytest.param(80, marks=pytest.mark.soak)])
def test_each_line_is_true_at_its_second_and_no_older_than_it_looks(n_epochs, page):
    "By the kernel's own log; the table and the picture come with the line"
    page.cells(BUSY.format(n_epochs), 'import json\nprint(json.dumps(log))')
    page.start()
    looks = []
    while not page.js('nb.done'):
        looks.append(page.js(LOOK))
        time.sleep(.1)
    page.wait()
    page.run(1)
    log, first, seen, late = json.loads(page.text(1)), {}, set(), 0
    for t, n in log: first.setdefault(n, t)
    for look in looks:
        if not (m := LINE.match(look['line'])): continue
        epoch, n, at = int(m[1]), m[2] and int(m[2]), m[3]
        until_s = look['time'] if n is None else first.get(n + 1, log[-1][0] + 1)
        since_s = log[0][0] if n is None else first.get(n, log[0][0] - 5)
        true = {time.strftime('%H:%M:%S', time.localtime(t)): t for t in range(int(since_s - .1), int(until_s) + 1)}
        assert at in true, look
        assert min(look['time'], log[-1][0]) - true[at] < 3.5, look
        assert n is None or epoch*20 <= n <= epoch*20 + 20, look
        late = late + 1 if int(look.get('last') or -1) != epoch - 1 else 0    # the outputs change one after another
        assert late < 3, look
        seen.add(look['src'])
    spent_s = log[-1][0] - log[0][0]
    assert spent_s > 5 and len(seen) >= min(spent_s, 6), (spent_s, len(seen))


# A fit that is disturbed

def saved(page):
    "The page, loaded again, knows no more than what was saved: that says when it was true, in exports, too"
    nb = page.save()
    check_dated(nb.cells[0].outputs[0].data)
    assert re.search(r'as of \d\d:\d\d:\d\d', HTMLExporter().from_notebook_node(nb)[0])
    page.open(busy=True)
    assert 'as of' in page.text()

BEFORE = {'interrupted': lambda page: None, 'cleared': lambda page: page.clear(0), 'loaded again': saved}
OFTEN = [*product(PAGES[:1], BEFORE), (PAGES[3], 'interrupted')]       # the others in `make soak`

@pytest.mark.parametrize('how, page', [
    pytest.param(how, page, marks=[] if (page, how) in OFTEN else pytest.mark.soak, id=f'{how}-{"-".join(page)}')
    for page, how in product(PAGES, BEFORE)], indirect=['page'])
def test_interrupt(page, how):
    "What the cell holds is final, the fit can be seen again, and goes on as if nothing had happened"
    page.cells(WAIT, *AGAIN, 'learn.resume()', 'print(digest(learn))')
    page.start()
    has_rows(page)
    BEFORE[how](page)
    page.interrupt()
    page.wait()
    if how == 'interrupted': check_outputs(page.outputs(), 'interrupted', None, 'TrainingInterrupted')
    if how != 'loaded again': check_interrupted(page.text())
    check_again(page, n_rows=None)
    page.run(3)
    check_outputs(page.outputs(3), n_rows=None)
    page.run(4)
    learn = start(display=False)
    learn.fit(N_EPOCHS)
    assert page.text(4).strip() == digest(learn)        # of a fit that shows nothing and is not disturbed

@lab_first
def test_interrupt_twice(page):
    page.cells(f'learn = start(Hang())\n{FIT}', *AGAIN)
    page.start()
    for text in 'hangs', 'was asked':
        page.wait_text(text)
        page.interrupt()
    page.wait()
    check_outputs([o for o in page.outputs() if o['output_type'] != 'stream'], 'interrupted', 1, 'KeyboardInterrupt')
    assert 'TrainingInterrupted' not in page.text()
    check_again(page, n_rows=1)
