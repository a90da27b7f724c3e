"Buttons that are clicked while a cell runs: what they do, when, and what they leave behind"
import json
from statistics import median

import pytest

from browser.conftest import lab_first

BUSY = {'torch': 'def work(learn): torch.rand(1200, 1200) @ torch.rand(1200, 1200)',
        'python': 'def work(learn): sum(i*i for i in range(100_000))',
        'sleep': 'def work(learn): time.sleep(.01)'}
FIT = '''from trainer_nb.all import Controls
class Checkpoint(Hook):
    provides = 'checkpoints'
    def save(self, learn): print('saved', flush=True)
{work}
controls = Controls()
learn = start(controls, Checkpoint(), LambdaHook(before_step=work), lr=.001)
learn.fit(10**6)'''
SEEN = '''import json
print(json.dumps({'flags': [o for _, o in learn.history.flags], 'cancelled': learn.cancelled,
                  'lr': learn.opt.param_groups[0]['lr'],
                  'left': learn.state.batch_idx, 'error': str(learn.display.error)}))'''

def fit(page, work='sleep'):
    page.cells(FIT.format(work=BUSY[work]), SEEN, 'learn.resume()')
    page.start()
    page.until('nb.area(0)?.querySelector("td")')       # an epoch is done

def click(page, label, until):
    "Click a button, see in the page that it was done, while the cell works on; returns the seconds until then"
    page.js('() => addEventListener("mousedown", () => window.clicked = Date.now()/1000, {capture: true, once: true})')
    page.press(label)
    page.until('text => nb.area(0).querySelector(".widget-html-content")?.innerText.match(text)', until)
    return page.js('Date.now()/1000 - window.clicked')

def ended(page):
    "What the kernel says, and nothing of widgets left"
    page.wait()
    page.run(1)
    shown = page.outputs()
    assert 'widget' not in json.dumps([o for o in shown if o['output_type'] != 'stream'])
    assert not page.js('nb.area(0).querySelectorAll("button").length')
    seen = json.loads(page.text(1))
    assert 'Controls failed' not in page.text() and seen['error'] == 'None'
    return seen

def check_clicks(page, stop):
    "Every button, then the one that ends the fit; returns list of seconds from each click to its effect"
    took = [click(page, label, until) for label, until in [
        ('lr × 2', r'^lr × 2 → 0.002 at batch '), ('lr ÷ 2', '^lr ÷ 2 → 0.001 at batch '),
        ('Checkpoint now', '^saves a checkpoint at batch '), ('Pause', '^paused at batch ')]]
    page.wait_text('paused')
    page.until_still()
    assert not page.js('nb.done')
    took.append(click(page, 'lr × 2', '^lr × 2 → 0.002 at batch '))
    assert 'paused' in page.text()
    took.append(click(page, 'Resume', '^resumed at batch '))
    assert page.boxes()[0][3] - page.boxes()[0][1] < 80
    page.press(stop)
    seen = ended(page)
    *rates, pause = seen['flags']
    assert rates == ['lr × 2 → 0.002', 'lr ÷ 2 → 0.001', 'lr × 2 → 0.002'] and pause.startswith('paused ')
    assert seen['lr'] == .002 and 'stopped at batch' in page.text()
    assert seen['cancelled'] == ('stop' if stop == 'Stop after batch' else None)
    return took

@lab_first
def test_every_button(page, request):
    which = request.node.callspec.params['page']
    work = {'lab': 'torch', 'notebook': 'python'}[which[0]]
    stop = {'light': 'Stop after batch', 'dark': 'Stop after epoch'}[which[1]]
    fit(page, work)
    took = check_clicks(page, stop)
    # `pytest -rP` shows it
    print(f'{which}, {work}: click to effect {1000*median(took):.0f} ms, most {1000*max(took):.0f} ms')
    page.save()
    page.open()
    assert not [o for o in ('model not found', 'Error displaying', 'Loading widget') if o in page.text()]

@lab_first
def test_a_notebook_that_was_reloaded_in_mid_run_shows_its_picture_without_the_kernel(page):
    "And no error of ipywidgets where the buttons were"
    fit(page)
    page.save()
    page.open(busy=True)
    page.interrupt()
    page.wait()
    page.save()
    page.js('() => nb.kernel().restart()')
    page.open()
    page.until(r'() => /as of \d.*learn\.show\(/s.test(nb.area(0).innerText)')
    page.until('nb.area(0).querySelector("img")?.naturalWidth')
    assert 'Error' not in page.text() and page.js('nb.area(0).querySelector("td").innerText') == '0'

@pytest.mark.soak
def test_a_front_end_without_subshells(old_page):
    fit(old_page, 'python')
    check_clicks(old_page, 'Stop after batch')
