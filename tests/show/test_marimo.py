"What a cell shows in marimo, with a stand-in for it; browser/test_marimo.py drives the real one"
import sys, threading, time
from types import SimpleNamespace

import cloudpickle, pytest

from common import batches, make_learner, until
from trainer_nb.draw import current_cell, reaches
from trainer_nb.runs.engine import now_here
from trainer_nb.runs.folder import RunFolder
from trainer_nb.runs.live import View
from trainer_nb.runs.record import RecordTail
from trainer_nb.show import front_end


class Html:
    def __init__(self, text): self.text = text

class Outputs:
    "What one run of a cell shows; `sent` holds what the page got"
    def __init__(self): self.items, self.sent, self.lock = [], [], threading.RLock()
    def __len__(self): return len(self.items)
    def stack(self): return Html(''.join(o.text for o in self.items)) if self.items else None
    def put(self, html, i):
        self.items[i:i + 1] = [html]
        self.sent.append(self.stack().text)

@pytest.fixture
def marimo(monkeypatch):
    "A stand-in; `run_cell` starts the next cell, and `here.output` holds what it shows"
    here, threads = threading.local(), []
    class Thread(threading.Thread):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.outputs, self.should_exit = here.output, False
            threads.append(self)
        def run(self):
            here.output = self.outputs
            super().run()
    def run_cell(): here.output = Outputs()
    output = SimpleNamespace(append=lambda html: here.output.put(html, len(here.output)),
                             replace_at_index=lambda html, i: here.output.put(html, i))
    mo = SimpleNamespace(output=output, Html=Html, Thread=Thread, running_in_notebook=lambda: hasattr(here, 'output'))
    context = SimpleNamespace(get_context=lambda: SimpleNamespace(execution_context=here))
    for name, o in ('marimo', mo), ('marimo._runtime', object()), ('marimo._runtime.context', context):
        monkeypatch.setitem(sys.modules, name, o)
    run_cell()
    return SimpleNamespace(here=here, run_cell=run_cell, threads=threads)

def test_fit(marimo):
    seen = []
    (t := threading.Thread(target=lambda: seen.append(front_end()))).start()
    t.join()
    assert front_end() == 'html' and seen == ['text']       # of another thread
    learn = make_learner(train_dl=batches(), valid_dl=batches(), display=True)
    h = learn.fit(2)
    outputs, first = marimo.here.output, current_cell()
    text = outputs.stack().text
    assert 'data:image/svg' in outputs.sent[1]
    assert text.count('<img') == text.count('<table') == 1 and 'as of' not in text
    assert h._display_().text == text           # as the last expression of its cell, it is not shown again
    cloudpickle.loads(cloudpickle.dumps(learn))
    marimo.run_cell()
    text = h._display_().text                   # in another cell
    assert text.count('<img') == text.count('<table') == 1 and not len(marimo.here.output)
    assert reaches(current_cell()) and not reaches(first)

def test_run(marimo, tmp_path):
    "A view of a run follows it in its cell, until it ends, or the cell runs again"
    folder = RunFolder(tmp_path/'a')
    folder.make()
    folder.write('run.json', {'name': 'a'})
    def state(name): folder.write('status.json', {'state': name, 'batch': 8, 'heartbeat': time.time(), **now_here()})
    log = folder.path/'record'/'log.jsonl'
    log.write_text(''.join(f'{{"kind": "step", "batch": {i}, "epoch": 0, "train_loss": 0.5}}\n' for i in range(1, 9)))
    for end in 'stopped', 'runs again':
        state('running')
        view = View(folder, RecordTail(log))
        view.show()
        outputs = marimo.here.output
        assert 'data:image/svg' in outputs.sent[-1]
        marimo.run_cell()
        state('paused')
        until(lambda: 'paused' in outputs.sent[-1])
        assert not marimo.here.output.sent
        if end == 'stopped': state(end)
        else: marimo.threads[-1].should_exit = True
        until(lambda: not view.is_alive)
        assert '<img' in outputs.sent[-1] and view.error is None
        assert ('as of' in outputs.sent[-1]) == (end != 'stopped')      # it leaves the cell alone
