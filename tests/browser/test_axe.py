"""axe-core finds nothing serious in what cells show and in pages of the site: `make soak`

Its script comes with `pip install axe-playwright-python`, which nothing else needs.
"""
from importlib.util import find_spec
from pathlib import Path

import pytest

from browser.lab import chromium, missing

package = find_spec('axe_playwright_python')
pytestmark = [pytest.mark.soak, pytest.mark.skipif(not package, reason='pip install axe-playwright-python')]
html = Path(__file__).parents[2]/'_docs/html'
FOUND = '''async where => {
    const res = await axe.run(where, {resultTypes: ['violations']})
    return res.violations.filter(o => ['serious', 'critical'].includes(o.impact)).map(o =>
        [o.id, o.help, ...o.nodes.slice(0, 3).map(o => o.html.slice(0, 300))]) }'''
SETUP = '''from trainer_nb.all import *
set_seed(0)
x = torch.randn(120, 4)
y = (x[:, 0] > 0).long()
def scaled(k): return Metric(lambda pred, targ: accuracy(pred, targ)*10**k, name=f'metric{k}')
def made(n_metrics, **kwargs):
    return Learner(nn.Linear(4, 2), (x[:80], y[:80]), (x[80:], y[80:]), loss_fn=F.cross_entropy, lr=.1, bs=20,
                   metrics=[*map(scaled, range(n_metrics))], device='cpu', **kwargs)
learn = made(1)'''
CELLS = [SETUP, 'learn.fit(4)', 'made(7).fit(2)', 'learn.lr_find()', 'learn.show()',
         'learn.results().confusion()', 'learn.describe_hooks()',
         "made(1, display=False).start(1, folder='here/one').wait()", "runs('here')", "compare('here')"]

def axe(page):
    "Load the script of axe-core into a page"
    page.add_script_tag(path=Path(package.origin).with_name('axe.min.js'))

@pytest.mark.parametrize('page', [('lab', 'light'), ('lab', 'dark')], ids='-'.join, indirect=True)
def test_what_cells_show(page):
    page.cells(*CELLS)
    for k in range(len(CELLS)):
        page.run(k)
        page.until_still(k)
    axe(page.page)
    found = page.js(FOUND, {'include': ['.jp-OutputArea-output']})
    assert not found, found
    assert page.page.locator('.jp-OutputArea-output').count() > 10

@pytest.mark.skipif(bool(missing()) or not html.exists(), reason='needs Chromium, and the site: make docs')
@pytest.mark.parametrize('name', ['index', 'start/02_quickstart', 'howto/17_read_the_picture', 'draw/04_plot',
                                  'api/04_watch'])
def test_pages_of_the_site(name):
    with chromium() as browser:
        for theme in 'light', 'dark':
            page = browser.new_page(color_scheme=theme)
            page.goto((html/f'{name}.html').as_uri())
            axe(page)
            found = page.evaluate(FOUND, 'article')
            assert not found, (theme, found)
