"""A fit and a run in a real marimo, in headless Chromium

marimo need not be in this environment: MARIMO names a Python that has it beside trainer_nb.

    MARIMO=/path/to/python python -m pytest -m soak tests/browser/test_marimo.py
"""
import os, subprocess, sys, time, urllib.request

import pytest

from browser.lab import CHROMIUM, chromium, free_port, new_page, serve, until
from fits import environment

PYTHON = os.environ.get('MARIMO', sys.executable)
SETUP = '''import time
import marimo as mo
import torch, torch.nn.functional as F
from trainer_nb.all import Hook, Learner, set_seed
class Slow(Hook):
    def after_step(self, learn): time.sleep(.02)
def make(lr=1e-2):
    set_seed(0)
    x = torch.randn(320, 4)
    return Learner(torch.nn.Linear(4, 1), (x, x[:, :1]), (x, x[:, :1]), loss_fn=F.mse_loss, lr=lr, hooks=[Slow()])'''
OUTPUT = 'document.querySelectorAll(".marimo-cell")[%d]?.querySelector("[data-cell-role=output]")'
SVG = "img[src^='data:image/svg']"
FINAL = 'img[alt*=train_loss], img[alt*=valid_loss]'      # a picture with words of what it shows: the last one

def missing():  # str or None
    "Why there can be no marimo here"
    if not CHROMIUM: return 'no Chromium: install it (Debian: apt-get install chromium), or set CHROMIUM'
    code = 'from importlib.util import find_spec; find_spec("marimo").name, find_spec("trainer_nb").name'
    if subprocess.run([PYTHON, '-c', code], stdin=subprocess.DEVNULL, capture_output=True).returncode:
        return 'no marimo: pip install marimo, or let MARIMO name a Python that has it and trainer_nb'

class Marimo:
    "A server with one notebook, and its page; a context manager"
    def __init__(self, tmp, browser, cells, theme, width):
        self.tmp, self.browser, self.width, self.foreign = tmp, browser, width, []
        args = ['    '.join(('\n' + o).splitlines(True)) for o in cells]
        body = '\n\n'.join(f'@app.cell\ndef _():{o}\n    return' for o in args)
        (tmp/'pyproject.toml').write_text(
            f'[tool.marimo.display]\ntheme = "{theme}"\n[tool.marimo.runtime]\nauto_instantiate = true\n')
        (tmp/'page.py').write_text(f'import marimo\n\napp = marimo.App()\n\n{body}\n')

    def __enter__(self):
        port = free_port()
        url = f'http://127.0.0.1:{port}'
        args = ['-m', 'marimo', '-q', '-y', 'edit', 'page.py', '--headless', '--no-token', '--port', port]
        env = {**environment(self.tmp), 'MARIMO_SKIP_UPDATE_CHECK': '1'}
        self.server = serve([PYTHON, *args], self.tmp/'server.log',
                            lambda: urllib.request.urlopen(f'{url}/health', timeout=5).close(), cwd=self.tmp, env=env)
        self.page = new_page(self.browser, url, self.foreign, width=self.width)
        self.page.goto(url)
        return self

    def __exit__(self, *error):
        self.page.close()
        self.server.terminate()
        try: self.server.wait(10)
        except subprocess.TimeoutExpired: self.server.kill()

    def shows(self, k, *texts):
        "Wait until the output of cell `k` has all these texts"
        for o in texts: until(self.page, f'o => ({OUTPUT % k})?.innerText.includes(o)', o)

    def moves(self, k):
        "Wait until the curve in cell `k` has changed"
        html = f'({OUTPUT % k})?.querySelector("{SVG}")?.outerHTML'
        old = self.page.evaluate(f'() => {html}')
        until(self.page, f'o => ({html} ?? o) != o', old)

    def ends(self, k):
        "Wait for the last picture in cell `k`; it stands there once"
        until(self.page, f'() => ({OUTPUT % k}).querySelector("{FINAL}")')
        assert self.n(k, 'img') == 1 and self.n(k, 'table') == 1

    def n(self, k, tag): return self.page.evaluate(f'() => ({OUTPUT % k}).querySelectorAll("{tag}").length')

@pytest.fixture(scope='module')
def browser():
    if why := missing(): pytest.skip(why)
    with chromium() as browser: yield browser

pytestmark = pytest.mark.soak
looks = pytest.mark.parametrize('look', [('light', 1000), ('dark', 480)], ids=lambda o: f'{o[0]}-{o[1]}')

@looks
def test_run(browser, tmp_path, look):
    cells = SETUP, "learn = make()\nrun = learn.start(10**3, folder='runs/a')", 'learn\n6*7', "run\nrun"
    with Marimo(tmp_path, browser, cells, *look) as m:
        try:
            m.shows(2, '42')            # the cell has returned
            m.moves(1)
            m.moves(3)                  # the last expression of another cell shows it, too
            assert m.n(1, SVG) == m.n(3, SVG) == 1
            time.sleep(11)
            m.moves(3)                  # a line that would appear after 10 s without news does not
            assert 'no update since' not in m.page.evaluate(f'() => ({OUTPUT % 3}).innerText')
            m.page.reload()
            m.moves(1)
        finally:
            subprocess.run([PYTHON, '-m', 'trainer_nb', 'stop', 'runs/a'], cwd=tmp_path, env=environment(tmp_path))
        for k in 1, 3:
            m.shows(k, 'stopped', 'valid_loss')
            m.ends(k)
        assert not m.foreign

@looks
def test_fit(browser, tmp_path, look):
    with Marimo(tmp_path, browser, (SETUP, 'a = make()\na.fit(30)', 'a\nb = make()\nb.fit(10**4)'), *look) as m:
        m.moves(1)
        m.shows(1, 'done: 30 epochs')
        m.ends(1)                       # not again as the last expression
        m.moves(2)
        m.page.get_by_test_id('interrupt-button').click()
        m.shows(2, 'interrupted')
