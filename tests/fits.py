"""The fits that test_front_ends.py and browser/ look at, for kernels and other processes; as a program: the usual one

And the environment of these processes: this checkout's package, one thread, nothing of the user's.
"""
import os, sys, time
from contextlib import contextmanager
from pathlib import Path

import torch

from common import batches, digest, make_learner, shuffled
from trainer_nb.show import lr_find   # noqa: F401   for those that import this module
from trainer_nb.all import Hook, LambdaHook, accuracy
from trainer_nb.show import Budget

N_EPOCHS, N_BATCHES = 3, 20
tests = Path(__file__).parent

def environment(tmp):
    "Environment variables for a process that runs these fits; a front end writes what is its own into `tmp`"
    names = 'JUPYTER_CONFIG_DIR', 'JUPYTER_DATA_DIR', 'JUPYTER_RUNTIME_DIR', 'IPYTHONDIR'
    dirs = {k: str(Path(tmp)/k.lower()) for k in names}
    for o in dirs.values(): os.makedirs(o, exist_ok=True)
    theirs = {k: v for k, v in os.environ.items() if k not in ('IN_TEST', 'COLUMNS', 'LINES')}
    return {**theirs, **dirs, 'PYTHONPATH': f'{tests.parent}{os.pathsep}{tests}', 'JUPYTER_PREFER_ENV_PATH': '1',
            'OMP_NUM_THREADS': '1', 'PYDEVD_DISABLE_FILE_VALIDATION': '1'}

def start(*hooks, step_s=0., **kwargs):
    "A learner with a display, always the same, for `fit(N_EPOCHS)`; a step takes at least `step_s`"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sleep = LambdaHook(after_backward=lambda learn: time.sleep(step_s))
    kwargs = {'train_dl': shuffled(5*N_BATCHES), 'valid_dl': batches(seed=2), 'metrics': [accuracy], 'lr': .02,
              'display': True, **kwargs}
    return make_learner(hooks=[sleep, *hooks], **kwargs)

def asked(learn): return any(not callable(o) for o in learn.requests)      # to stop; displays ask to be updated

class Wait(Hook):
    "In the middle of the second epoch, draw, and wait until somebody has stopped the fit; once only"
    stopped = False
    def after_backward(self, learn):
        if learn.state.optimizer_step != 1.5*N_BATCHES: return
        if not self.stopped: learn.display.draw(learn)
        while not self.stopped and not asked(learn): time.sleep(.01)
    def after_cancel(self, learn): self.stopped = True

class Hang(Hook):
    "In the second epoch, print a line and hang, until it is interrupted by force"
    def after_backward(self, learn):
        if learn.state.optimizer_step != N_BATCHES + 2: return
        print('hangs', flush=True)
        while not asked(learn): time.sleep(.01)
        print('was asked', flush=True)
        while True: time.sleep(.01)

class Pace(Hook):
    "Steps are slow, and slower still while the display lags behind: on a busy machine it updates less often"
    def after_backward(self, learn):
        n = learn.state.optimizer_step + 1
        time.sleep(.02 if learn.display.budget.n > 6*n//(N_EPOCHS*N_BATCHES) else .4)

class Eager(Budget):
    "Updates that come as on a fast machine, however busy this one is"
    @contextmanager
    def drawing(self):
        with super().drawing(): yield
        self.next = time.perf_counter() + .2

class Lossy(Hook):
    "A front end that loses the updates of displays"
    ord, n_lost = 99, 0        # just before the display
    def before_fit(self, learn):
        from IPython import get_ipython
        self.pub = get_ipython().display_pub
        self.publish, self.pub.publish = self.pub.publish, self.lose
    def lose(self, *args, update=False, **kwargs):
        if update: self.n_lost += 1
        else: self.publish(*args, update=update, **kwargs)
    def restore(self):      # int: number of updates that were lost
        self.pub.publish = self.publish
        return self.n_lost

class ClearOutput(Hook):
    "Somebody clears the cell's output in the second epoch"
    def __init__(self, wait): self.wait = wait
    def after_step(self, learn):
        from IPython.display import clear_output
        if learn.state.optimizer_step == 1.5*N_BATCHES and learn.training: clear_output(wait=self.wait)

class Fail(Hook):
    def after_step(self, learn):
        if learn.state.optimizer_step == 1.5*N_BATCHES: raise ZeroDivisionError('on purpose')


if __name__ == '__main__':
    learn = start(*[Pace()]*sys.stdout.isatty())        # where there is a bar, time to see it
    learn.fit(N_EPOCHS)
    print(digest(learn)[:16])
