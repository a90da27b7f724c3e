"""What front ends leave of saved outputs that change them: the stored outputs of all notebooks, by published rules

VS Code's rules are those of its repository: `NOTEBOOK_DISPLAY_ORDER` and `mimeTypeIsAlwaysSecure` in notebookCommon.ts,
and notebook-renderers, which shows HTML as it is, in a trusted workspace. Colab shows the outputs of a cell in a frame
of their own. What github.com does to HTML is not published for notebooks: these are the rules of html-pipeline, which
it wrote for its Markdown, and a stricter one for pictures. None of the three was opened.
"""
import json, re
from functools import cache
from pathlib import Path

import bleach, pytest, torch
from bs4 import BeautifulSoup
from torch import nn
from torch.nn import functional as F

from trainer_nb.all import Learner
from trainer_nb.draw import page
from trainer_nb.look import results

nbs = Path(__file__).parents[2]/'nbs'
ORDER = ('application/json', 'application/javascript', 'text/html', 'image/svg+xml', 'text/latex', 'text/markdown',
         'image/png', 'image/jpeg', 'text/plain')       # of VS Code; GitHub's notebooks and nbviewer, too, prefer HTML
UNSAFE = 'application/javascript', 'text/html', 'image/svg+xml'     # that VS Code leaves out in a restricted workspace
TAGS = '''h1 h2 h3 h4 h5 h6 br b i strong em a pre code img tt div ins del sup sub p ol ul table thead tbody tfoot
    blockquote dl dt dd kbd q samp var hr ruby rt rp li tr td th s strike summary details caption figure figcaption abbr
    bdo cite dfn mark small span time wbr'''.split()
ATTRIBUTES = {'a': ['href'], 'img': ['src'], '*': '''align alt aria-hidden aria-label border cellpadding cellspacing
    colspan dir height lang role rowspan scope span tabindex title valign width'''.split()}

KINDS = {       # what the library shows → how a cell that shows it ends
    'fit': 'learn.fit(6)', 'resumed': 'learn.resume()', 'history': 'learn.history', 'lr_find': 'learn.lr_find();',
    'describe_hooks': 'learn.describe_hooks()', 'plot_schedule': 'hooks=OneCycle(.1))',
    'samples': 'learn.show_batch(6, shape=(8, 8))', 'results': 'learn.results(shape=(8, 8)).show(6)',
    'confusion': 'results.confusion()', 'report': 'results.report()', 'summary': 'learn.summary()',
    'doctor': 'learn.doctor()', 'run': "attach(home/'run')", 'runs': 'runs(home)', 'compare': 'compare(home)',
    'sweep': 'NopPruner())', 'diff': 'diff(last_week, today)'}

@cache
def stored():
    "List (notebook, source, MIME bundles with HTML) of all cells that show objects of ours"
    found = []
    for path in sorted(nbs.rglob('[!_.]*.ipynb')):
        for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
            bundles = [{k: ''.join(v) for k, v in o['data'].items()} for o in cell.get('outputs', ()) if 'data' in o]
            # `HTML(...)` of a page's own, and pandas, say nothing as text that is ours
            bundles = [o for o in bundles if 'text/html' in o and not o['text/plain'].startswith('<')
                       and 'class="dataframe"' not in o['text/html']]
            name = path.relative_to(nbs).with_suffix('').as_posix()
            if bundles: found.append((name, ''.join(cell['source']).strip(), bundles))
    return found

def of_kind(kind): return next(bundles for _, source, bundles in stored() if source.endswith(KINDS[kind]))

def sanitized(html):
    "Parse what a strict viewer leaves of HTML: no style, no script, no class, no picture inside of the page"
    page = BeautifulSoup(html, 'html.parser')
    for o in page(['style', 'script', 'svg', 'iframe', 'title']): o.decompose()
    return BeautifulSoup(bleach.clean(str(page), TAGS, ATTRIBUTES, {'http', 'https'}, strip=True), 'html.parser')

def numbers(text): return {*re.findall(r'\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?', text)}

def is_over(bundles):       # an output that still changes has its table only as HTML
    return not re.search(r'^[^\n]*epoch \d+ · batch \d+ · ', bundles[0]['text/plain'])

def in_tables(page):
    "Return the words of tables, without what is folded away, and the shares of a confusion matrix beside its counts"
    for o in page('details'): o.decompose()
    text = '\n'.join(o.get_text('\n') for o in page('table'))
    return re.sub(r'^[<>]?\d+%$', '', text, flags=re.M)

def check(bundles):
    "Words, numbers and pictures, in each front end"
    for o in bundles:
        html, text = o['text/html'], o['text/plain']
        assert o.keys() <= {'text/html', 'text/plain', 'image/png'}         # no script, no widget that needs a kernel
        assert not re.search(r'<script|<iframe|<link|@import|\son\w+=', html)
        safe = [k for k in ORDER if k in o and k not in UNSAFE]
        assert safe[0] == ('image/png' if 'image/png' in o else 'text/plain')
        left = sanitized(html)
        told = left.get_text(' ') + ' '.join(img['alt'] for img in left('img'))
        assert numbers(text) <= numbers(told), (numbers(text) - numbers(told), text)
        assert not re.search(r'[a-z-]+:[a-z0-9#-]+[;}]', told), told     # no CSS to read
        for img in left('img'):     # some viewers drop what is in its place
            assert not img.get('src') and ('image/png' in o or text) and img['alt'], img
    pages = [BeautifulSoup(o['text/html'], 'html.parser') for o in bundles]
    styles = ''.join(style.text for page in pages for style in page('style'))
    named = {name for page in pages for o in page(class_=True) for name in o['class'] if name.startswith('tnb-')}
    assert not {o for o in named if f'.{o}' not in styles}      # Colab's frame of the cell has no style of another cell
    if is_over(bundles):
        text = '\n'.join(o['text/plain'] for o in bundles)
        rows = '\n'.join(in_tables(sanitized(o['text/html'])) for o in bundles)
        assert numbers(rows) <= numbers(text), (numbers(rows) - numbers(text), text)

@pytest.mark.parametrize('kind', KINDS)
def test_each_kind_says_the_same_everywhere(kind): check(of_kind(kind))

def test_so_does_every_stored_output():
    wrong = {}
    for name, source, bundles in stored():
        try: check(bundles)
        except AssertionError as e: wrong[name, source.splitlines()[-1]] = str(e)[:300]
    assert len(stored()) > 150 and not wrong, wrong

def test_a_table_stands_beside_the_buttons_that_need_a_kernel(monkeypatch):
    "A saved notebook has a view of widgets that no front end can draw without their kernel"
    targ, pred, shown = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 1]), []
    learn = Learner(nn.Identity(), None, (F.one_hot(pred).float(), targ), loss_fn=F.cross_entropy, display=False)
    monkeypatch.setattr(results, 'attended_kernel', lambda: True)
    monkeypatch.setattr(page, 'show_bundle', lambda data, *_: shown.append(data))
    learn.results().confusion()._ipython_display_()
    table, buttons = shown
    check([table])
    assert '4 of 5 right' in table['text/plain'] and '4 of 5 right' in table['text/html']
    assert buttons.keys() - {'text/plain'} == {'application/vnd.jupyter.widget-view+json'}
