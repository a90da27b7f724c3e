"""The built site as a person opens it, from `file://`: `make site`

One browser opens each page once, in both themes. No page may ask any host for anything: requests are recorded, and the
browser resolves no name.
"""
import re
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser.lab import chromium, missing

import trainer_nb.all as everything

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(missing()), reason=str(missing()))]
html = Path(__file__).parents[2]/'_docs/html'
pages = sorted(html.rglob('*.html'))
NAMES = [name for name, o in vars(everything).items()
         if name[0] != '_' and getattr(o, '__module__', '').startswith('trainer_nb')]

LOOK = '''() => ({
    links: [...document.querySelectorAll('a[href]')].map(o => o.href),
    ids: [...document.querySelectorAll('[id], a[name]')].map(o => o.id || o.name),
    // headings without a level, names that hide what one reads, tables that only a mouse can scroll
    unsaid: [...document.querySelectorAll(
        '[role=heading]:not([aria-level]), summary[aria-label], .table-wrapper:not([tabindex])')].map(o => o.outerHTML),
    images: [...document.images].map(o => [o.src, o.complete && o.naturalWidth, o.alt]) })'''
WIDTHS = 390, 900, 1440
WIDE = '''() => [       // what sticks out of the page, and tables whose text has too little room
    ...[...document.querySelectorAll('html, body, .main, .content')]
        .filter(o => o.scrollWidth > o.clientWidth + 1),
    ...[...document.querySelectorAll('article :is(p, li, table, img, pre, h1, h2, h3, details)')].filter(o => {
        const box = o.getBoundingClientRect()
        return box.right > innerWidth + 1 && !o.closest('.cell_output, .highlight, .table-wrapper') }),
    ...[...document.querySelectorAll(':is(table.parameters, table.names) td:last-child')]
        .filter(o => o.clientWidth < 180),
].map(o => o.tagName + ' ' + o.className + ' ' + o.innerText.slice(0, 40))'''
RESIZED = '''async width => {      // the window has its new width, and the page was drawn in it
    const frame = () => new Promise(requestAnimationFrame)
    while (innerWidth != width) await frame()
    await frame(); await frame() }'''
CONTRAST = '''() => {     // the lowest of text to background, of everything that one reads
    const read = [...document.querySelectorAll('article :is(h1, h2, h3, p, td, th, .highlight pre), .sidebar-tree a')]
    const found = nb.contrasts_of(read.filter(o => o.offsetParent && o.innerText.trim()))
    return found.sort((a, b) => a[1] - b[1])[0] }'''

@pytest.fixture(scope='module')
def tab():
    "A page of a browser; `tab.said` is what consoles said, `tab.asked` which URLs were asked for"
    assert (html/'index.html').exists(), 'build it first: make docs'
    with chromium() as browser:
        tab = browser.new_page(viewport={'width': 1280, 'height': 900}, color_scheme='light')
        tab.add_init_script(path=Path(__file__).with_name('page.js'))
        tab.said, tab.asked = [], []
        tab.on('console', lambda o: o.type in ('error', 'warning') and tab.said.append((tab.url, o.text)))
        tab.on('pageerror', lambda e: tab.said.append((tab.url, str(e))))
        tab.on('request', lambda o: tab.asked.append(o.url))
        yield tab

@pytest.fixture(scope='module')
def seen(tab):
    "What stands in each page: path → dict; and its lowest contrast in each theme"
    res = {}
    for path in pages:
        tab.emulate_media(color_scheme='light')
        tab.goto(path.as_uri())
        res[path] = {**tab.evaluate(LOOK), 'wide': {}}
        for width in WIDTHS:
            tab.set_viewport_size({'width': width, 'height': 900})
            tab.evaluate(RESIZED, width)
            for theme in 'light', 'dark':
                tab.emulate_media(color_scheme=theme)
                if wide := tab.evaluate(WIDE): res[path]['wide'][theme, width] = wide
                if width == WIDTHS[-1]: res[path][theme] = tab.evaluate(CONTRAST)
        res[path]['background'] = tab.evaluate('getComputedStyle(document.body).backgroundColor')
    tab.emulate_media(color_scheme='light')
    return res

def test_nothing_is_said_and_no_host_is_asked(tab, seen):
    assert len(seen) > 40 and not tab.said
    assert not [o for o in tab.asked if not o.startswith(('file:', 'data:'))]

def test_links_lead_somewhere(seen):
    ids, dead = {path: set(o['ids']) for path, o in seen.items()}, defaultdict(set)
    for path, o in seen.items():
        for link in map(urlsplit, o['links']):
            if link.scheme != 'file': continue
            to = Path(unquote(link.path))
            if not to.exists() or link.fragment and to in ids and unquote(link.fragment) not in ids[to]:
                dead[path.name].add(link.geturl().split('/html/')[-1])
    assert not dead

def test_pictures_are_there_and_say_what_they_show(seen):
    images = [(path.name, *o) for path, page in seen.items() for o in page['images']]
    assert len(images) > 50 and not [o for o in images if not o[2]]
    assert not [o for o in images if not o[3] or o[3].endswith('.png')]

def test_readers_of_screens_and_keyboards_reach_all(seen):
    assert not {path.name: o['unsaid'][:3] for path, o in seen.items() if o['unsaid']}

def test_both_themes_are_readable(seen):
    for theme in 'light', 'dark':
        assert not {path.name: o[theme] for path, o in seen.items() if o[theme] and o[theme][1] < 4.5}
    assert {o['background'] for o in seen.values()} == {'rgb(19, 20, 22)'}       # dark, in the end

def test_nothing_sticks_out(seen): assert not {path.name: o['wide'] for path, o in seen.items() if o['wide']}


FOUND = {       # what people type → the page that comes first
    'save best': 'save/03_checkpoint', 'onnx': 'howto/16_everyday', 'k-fold': 'howto/16_everyday',
    'early stopping': 'save/04_watch', 'EarlyStopping': 'save/04_watch', 'resume': 'tutorials/07_never_lose_a_run',
    'lr': 'show/04_lr_find', 'learn.lr_find': 'show/04_lr_find', 'learning rate': 'tutorials/04_learning_rates',
    'batch size': 'data/04_loaders', 'dataloader': 'data/04_loaders', 'csv': 'lessons/02_table',
    'several gpus': 'howto/05_several_gpus', 'segmentation': 'lessons/04_segmentation', 'gan': 'tutorials/05_gan',
    'forecast': 'lessons/05_forecasting', 'custom loss': 'tutorials/01_trainer_pattern',
    'freeze': 'features/02_weights', 'ema': 'features/02_weights', 'tensorboard': 'howto/02_tensorboard',
    'predict': 'loop/14_learner', 'fit': 'loop/14_learner', 'mixed precision': 'features/01_gradients',
    'gpu': 'start/04_faq', 'loss is nan': 'start/04_faq', 'kernel died': 'howto/10_the_kernel_died',
    'confusion matrix': 'look/03_results', 'fine-tune': 'lessons/07_pretrained', 'lora': 'lessons/06_adapters',
}
FIRST = '''query => {      // as `Search.query` does, which shows the last result first
    const found = Search._performSearch(...Search._parseQuery(query))
    return found.length ? found[found.length - 1][0] : 'nothing' }'''

def test_search_finds_what_people_type(tab):
    "And shows the best first"
    tab.goto((html/'index.html').as_uri())
    tab.fill('.sidebar-search', 'early stopping')
    tab.press('.sidebar-search', 'Enter')
    tab.wait_for_selector('#search-results li a')
    assert 'save/04_watch.html' in tab.evaluate('document.querySelector("#search-results li a").href')
    found = {query: tab.evaluate(FIRST, query) for query in FOUND}
    assert not {query: (found[query], page) for query, page in FOUND.items() if found[query] != page}

def test_the_front_page_says_what_it_is_on_its_first_screen(tab):
    "Also to readers who want no motion"
    tab.set_viewport_size({'width': 1440, 'height': 900})
    for motion, name in ('reduce', 'live.png'), ('no-preference', 'live.webp'):
        tab.emulate_media(reduced_motion=motion)
        tab.goto((html/'index.html').as_uri())
        assert tab.evaluate('document.querySelector("picture.live img").currentSrc').endswith(name)
    top = tab.evaluate('document.querySelector("picture.live img").getBoundingClientRect().top')
    assert top < 600 and 'pip install' in tab.inner_text('article')
    assert (html/'_static/live.webp').stat().st_size < 300_000

def test_every_public_name_has_an_anchor_and_is_in_the_index(tab, seen):
    anchors = {o for page in seen.values() for o in page['ids']}
    verbs = 'fit', 'validate', 'predict', 'lr_find', 'describe_hooks', 'resume', 'plot_schedule', 'export'
    assert not [o for o in NAMES if not anchors & {o.lower(), o.lower().replace('_', '-')}]
    for verb in verbs:
        assert anchors & {f'{cls}-{verb.replace("_", "-")}' for cls in ('learner', 'hooked')}, verb
    tab.goto((html/'genindex.html').as_uri())
    listed = set(tab.evaluate('[...document.querySelectorAll(".genindextable li > a")].map(o => o.innerText)'))
    assert {*NAMES, 'learn.fit', 'learn.lr_find', 'overfitting', 'csv'} <= listed

def test_twins_and_lists():
    "Each page has its Markdown, `llms.txt` names all of them, and no MyST is left in it"
    docs = {p.relative_to(html).with_suffix('').as_posix() for p in pages} - {'genindex', 'search'}
    assert docs == {p.relative_to(html).with_suffix('').as_posix() for p in html.rglob('*.md')}
    listed = set(re.findall(r'\]\(https://[^/]+/trainer_nb/([^)]+)\.md\)', (html/'llms.txt').read_text()))
    assert docs == listed
    for name in docs:
        text = (html/f'{name}.md').read_text(encoding='utf-8')
        prose = re.sub(r'^(`{3,}).*?^\1', '', text, flags=re.M | re.S)
        assert text.startswith('# ') and len(text) > 200, name
        assert not re.search(r'^:::|^\([\w.-]+\)=$|^\{\.', prose, flags=re.M), name
        for link in re.findall(r'\]\((?!\w+:)([^)#\s]+)', prose):
            assert (html/name).parent.joinpath(link).exists(), (name, link)
