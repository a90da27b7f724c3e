"Buttons that are clicked while a cell runs: what they do, when, and what they leave behind"
import json

import pytest

from browser.conftest import lab_first

FIT = '''from trainer_nb.all import Controls
class Checkpoint(Hook):
    provides = 'checkpoints'
    def save(self, learn): print('saved', flush=True)
def work(learn): sum(i*i for i in range(100_000))
controls = Controls()
learn = start(controls, Checkpoint(), LambdaHook(before_step=work), lr=.001)
learn.fit(10**6)'''
SEEN = '''import json
print(json.dumps({'flags': [o for _, o in learn.history.flags], 'cancelled': learn.cancelled,
                  'lr': learn.opt.param_groups[0]['lr'], 'error': str(learn.display.error)}))'''

def click(page, label, until):
    "Click a button, and see in the page that it was done, while the cell works on"
    page.press(label)
    page.until('text => nb.area(0).querySelector(".widget-html-content")?.innerText.match(text)', until)

def check_clicks(page, stop):
    "Every button, then the one that ends the fit: nothing of widgets is left"
    page.cells(FIT, SEEN)
    page.start()
    page.until('nb.area(0)?.querySelector("td")')       # an epoch is done
    for label, until in [('lr × 2', r'^lr × 2 → 0.002 at batch '), ('lr ÷ 2', '^lr ÷ 2 → 0.001 at batch '),
                         ('Checkpoint now', '^saves a checkpoint at batch '), ('Pause', '^paused at batch ')]:
        click(page, label, until)
    page.wait_text('paused')
    page.until_still()
    assert not page.js('nb.done')
    click(page, 'lr × 2', '^lr × 2 → 0.002 at batch ')
    assert 'paused' in page.text()
    click(page, 'Resume', '^resumed at batch ')
    assert page.boxes()[0][3] - page.boxes()[0][1] < 80
    page.press(stop)
    page.wait()
    page.run(1)
    assert 'widget' not in json.dumps([o for o in page.outputs() if o['output_type'] != 'stream'])
    assert not page.js('nb.area(0).querySelectorAll("button").length')
    assert 'Controls failed' not in page.text() and 'stopped at batch' in page.text()
    seen = json.loads(page.text(1))
    *rates, pause = seen['flags']
    assert rates == ['lr × 2 → 0.002', 'lr ÷ 2 → 0.001', 'lr × 2 → 0.002'] and pause.startswith('paused ')
    assert seen['lr'] == .002 and seen['error'] == 'None'
    assert seen['cancelled'] == ('stop' if stop == 'Stop after batch' else None)

@lab_first
def test_every_button(page, request):
    light = 'light' in request.node.callspec.params['page']
    check_clicks(page, 'Stop after batch' if light else 'Stop after epoch')
    page.save()
    page.open()
    assert not [o for o in ('model not found', 'Error displaying', 'Loading widget') if o in page.text()]

@pytest.mark.soak
def test_a_front_end_without_subshells(old_page): check_clicks(old_page, 'Stop after batch')
