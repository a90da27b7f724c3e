"What a cell shows in marimo, with a stand-in for it; browser/test_marimo.py drives the real one"
import sys, threading, time
from types import SimpleNamespace

import cloudpickle, pytest, torch
import torch.nn.functional as F

from common import until
from trainer_nb.all import Learner
from trainer_nb.draw import current_cell, reaches
from trainer_nb.runs.engine import now_here
from trainer_nb.runs.folder import RunFolder
from trainer_nb.runs.live import View
from trainer_nb.runs.record import RecordTail
from trainer_nb.show import front_end


class Outputs:
    "What one run of a cell shows; `sent` holds what the page got"
    def __init__(self): self.items, self.sent, self.lock = [], [], threading.RLock()
    def __len__(self): return len(self.items)
    def stack(self): return Html(''.join(o.text for o in self.items)) if self.items else None
    def replace_at_index(self, html, i): self.items[i:i + 1] = [html]

class Html:
    def __init__(self, text): self.text = text

@pytest.fixture
def marimo(monkeypatch):
    "A stand-in; `run_cell` starts the next cell, and `here.output` holds what it shows"
    here, threads = threading.local(), []
    def send(f):
        f(here.output)
        here.output.sent.append(here.output.stack().text)
    class Thread(threading.Thread):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.outputs, self.should_exit = here.output, False
            threads.append(self)
        def run(self):
            here.output = self.outputs
            super().run()
    def run_cell(): here.output = Outputs()
    output = SimpleNamespace(append=lambda html: send(lambda o: o.items.append(html)),
                             replace_at_index=lambda html, i: send(lambda o: o.replace_at_index(html, i)))
    mo = SimpleNamespace(output=output, Html=Html, Thread=Thread,
                         running_in_notebook=lambda: hasattr(here, 'output'))
    context = SimpleNamespace(get_context=lambda: SimpleNamespace(execution_context=here))
    for name, o in ('marimo', mo), ('marimo._runtime', object()), ('marimo._runtime.context', context):
        monkeypatch.setitem(sys.modules, name, o)
    run_cell()
    return SimpleNamespace(here=here, run_cell=run_cell, threads=threads)

def make():
    x = torch.randn(64, 4)
    return Learner(torch.nn.Linear(4, 1), (x, x[:, :1]), (x, x[:, :1]), loss_fn=F.mse_loss)

def test_fit(marimo):
    seen = []
    (t := threading.Thread(target=lambda: seen.append(front_end()))).start()
    t.join()
    assert front_end() == 'html' and seen == ['text']       # of another thread
    learn = make()
    h = learn.fit(2)
    outputs = marimo.here.output
    assert 'data:image/svg' in outputs.sent[1]
    assert (text := outputs.stack().text).count('<img') == text.count('<table') == 1 and 'as of' not in text
    assert h._display_().text == text           # as the last expression of its cell, it is not shown again
    cloudpickle.loads(cloudpickle.dumps(learn))
    first = current_cell()
    marimo.run_cell()
    text = h._display_().text                   # in another cell
    assert text.count('<img') == text.count('<table') == 1 and not len(marimo.here.output)
    assert reaches(current_cell()) and not reaches(first)

def started(tmp_path):
    folder = RunFolder(tmp_path/'a')
    folder.make()
    folder.write('run.json', {'name': 'a'})
    log = folder.path/'record'/'log.jsonl'
    log.write_text(''.join(f'{{"kind": "step", "batch": {i}, "epoch": 0, "train_loss": 0.5}}\n' for i in range(1, 9)))
    folder.write('status.json', {'state': 'running', 'batch': 8, 'heartbeat': time.time(), **now_here()})
    return folder, View(folder, RecordTail(log))

def test_run(marimo, tmp_path):
    folder, view = started(tmp_path)
    view.show()
    outputs = marimo.here.output
    assert 'data:image/svg' in outputs.sent[-1]
    marimo.run_cell()
    folder.write('status.json', {'state': 'paused', 'batch': 8, 'heartbeat': time.time(), **now_here()})
    until(lambda: 'paused' in outputs.sent[-1])
    assert not marimo.here.output.sent
    folder.write('status.json', {'state': 'stopped', **now_here()})
    until(lambda: not view.is_alive)
    assert '<img' in outputs.sent[-1] and view.error is None

def test_cell_runs_again(marimo, tmp_path):
    folder, view = started(tmp_path)
    view.show()
    marimo.threads[0].should_exit = True
    marimo.threads[0].join(10)
    assert not view.is_alive and 'as of' in marimo.here.output.sent[-1]      # it leaves the cell alone
