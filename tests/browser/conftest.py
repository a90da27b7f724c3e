"One server and one browser for all tests here; a page for each app, in either theme"

import pytest

from browser.lab import Jupyter, left_out, missing

PAGES = [(app, theme) for app in ('lab', 'notebook') for theme in ('light', 'dark')]
# each app and each theme once; all four under `make soak`
IN_TURN = [pytest.param(o, marks=[] if o in (PAGES[0], PAGES[3]) else pytest.mark.soak) for o in PAGES]
# what does not depend on the app: JupyterLab only; each app once under `make soak`
lab_first = pytest.mark.parametrize('page', [PAGES[0], pytest.param(PAGES[3], marks=pytest.mark.soak)], ids='-'.join,
                                    indirect=True)

@pytest.fixture(scope='package')
def jupyter():
    if why := missing(): left_out(why)
    with Jupyter() as jupyter: yield jupyter
    assert not jupyter.foreign, f'pages asked for {set(jupyter.foreign)}'

def ready(page):
    "The page; a cell has imported `fits`"
    page.cells('from fits import *')
    page.run()
    return page

@pytest.fixture(params=[PAGES[0]], ids='-'.join)
def page(jupyter, request):
    "JupyterLab, unless a test names others"
    return ready(jupyter.page(*request.param))

@pytest.fixture
def old_page(jupyter):
    "A front end without subshells, as one that is older, or another program: the kernel makes one of its own"
    settings = {'apputils-extension/kernels-settings': {'commsOverSubshells': 'disabled'}}
    with Jupyter(settings, browser=jupyter.browser) as old: yield ready(old.page())
