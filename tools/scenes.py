"""Shoot the scenes of live views in JupyterLab and Notebook 7: `python tools/scenes.py FOLDER [lab-light-1440 ...]`

A fit while it trains, a pause, the best epoch, the finder, a comparison, a sweep, a fork and a rewind; in light and
dark, 1440 and 900 pixels wide, unless you name some of the eight. Pictures of one scene are numbered. Needs Chromium.
"""
import sys
from itertools import product
from pathlib import Path

root = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(root/'tests'))

from browser.lab import Jupyter    # noqa: E402

SETUP = '''import tempfile
from pathlib import Path
from time import sleep
from sklearn.datasets import load_digits
from trainer_nb.all import *
home = Path(tempfile.mkdtemp())
x, y = map(torch.tensor, load_digits(return_X_y=True))
x = x.float()/16
def top_3(pred, targ): return (pred.topk(3).indices == targ[:, None]).any(1).float().mean()
class Slow(Hook):
    def __init__(self, s=.02): self.s = s
    def after_step(self, learn): sleep(self.s)
def made(*hooks, n=1437, lr=3e-3, units=128, **kwargs):
    set_seed(0)
    model = nn.Sequential(nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 10))
    return Learner(model, (x[:n], y[:n]), (x[-360:], y[-360:]), loss_fn=F.cross_entropy, lr=lr,
                   metrics=[accuracy, top_3], hooks=hooks, **kwargs)
def searched(trial):
    lr, units = trial.suggest_float('lr', 1e-4, .1, log=True), trial.suggest_int('units', 8, 128)
    return made(Slow(.005), lr=lr, units=units)'''
RUNS = '''for lr in 1e-3, 3e-3, 1e-2:
    made(Slow(.03), lr=lr, display=False).start(8, folder=home/f'runs/lr {lr:g}')'''
FORK = '''learn = made(Checkpoint(home/'c', keep=6), lr=.01)
run = learn.start(6, folder=home/'trunk')
run.wait()
branch = run.fork(at=3, lr=.001, n_epochs=6)
branch.wait()
branch'''
REWIND = '''from IPython.display import clear_output
learn = made(Checkpoint(home/'d', keep=6), lr=.03)
learn.fit(6)
learn.rewind(3)
for g in learn.opt.param_groups: g['lr'] = .003
clear_output()
learn.fit(3)'''
SCENES = [      # name, source, what to do while it runs: frames to take, a text to wait for, or (button, text)
    ('fit', 'made(Slow()).fit(6)', [6]),
    ('pause', 'made(Controls(), Slow()).fit(3)', [1, ('lr ÷ 2', 'lr ÷ 2 →'), ('Pause', 'paused at'), 1,
                                                 ('Resume', 'resumed at')]),
    ('best', 'made(n=200, lr=.02).fit(60)', []),
    ('lr_find', 'made().lr_find()', []),
    ('runs', RUNS, [2]),
    ('compare', "compare(home/'runs')", ['by optimizer step', 6]),
    ('sweep', "found = sweep(searched, 8, home/'sweep', n_epochs=4)\nfound", [6]),
    ('fork', FORK, []),
    ('rewind', REWIND, [])]


def point(page, k):
    "Move the pointer over the first chart of a cell"
    box = page.js('k => { const o = nb.area(k)?.querySelector(".tnb-hover"); if (!o) return null;'
                  'o.scrollIntoView({block: "center"}); const b = o.getBoundingClientRect();'
                  'return [b.x + .6*b.width, b.y + b.height/3] }', k)
    if box: page.page.mouse.move(*box)
    return box


def shoot(page, path, width):
    page.page.set_viewport_size({'width': width, 'height': 2600})
    page.cells(SETUP, *(source for _, source, _ in SCENES))
    page.run(0)
    if page.text(0): raise RuntimeError(page.text(0))
    for k, (name, _, steps) in enumerate(SCENES, 1):
        n, area = 0, page.page.locator('.jp-Notebook .jp-Cell').nth(k)
        def take():
            nonlocal n
            n += 1
            area.screenshot(path=path/f'{name}-{n:02}.png')
        page.js('k => nb.cell(k).node.scrollIntoView()', k)
        page.start(k)
        page.until('k => nb.area(k)?.querySelector("tbody tr, img") || nb.idle()', k)
        for step in steps:
            if type(step) is tuple: page.press(step[0], k)
            if type(step) is not int: page.wait_text(step if type(step) is str else step[1], k)
            for _ in range(step if type(step) is int else 0):
                page.page.wait_for_timeout(500)
                take()
        page.wait()
        if name == 'compare': page.until('k => !nb.area(k).innerText.includes("live")', k)
        page.until_still(k)
        take()
        if point(page, k): take()
        page.page.mouse.move(2, 2)


if __name__ == '__main__':
    to, *names = sys.argv[1:]
    with Jupyter() as jupyter:
        for app, theme, width in product(('lab', 'notebook'), ('light', 'dark'), (1440, 900)):
            name = f'{app}-{theme}-{width}'
            if names and name not in names: continue
            path = Path(to)/name
            path.mkdir(parents=True, exist_ok=True)
            shoot(jupyter.page(app, theme), path, width)
            print(f'{name}: {len([*path.iterdir()])} pictures', flush=True)
