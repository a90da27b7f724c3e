"""The built site as a person opens it, from `file://`: `make site`

One browser opens each page once, in both themes. No page may ask any host for anything: requests are recorded, and the
browser resolves no name.
"""
import re
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser.lab import ARGS, CHROMIUM, missing

import trainer_nb.all as everything

pytestmark = [pytest.mark.site, pytest.mark.skipif(bool(missing()), reason=str(missing()))]
html = Path(__file__).parents[2]/'_docs/html'
pages = sorted(html.rglob('*.html'))

LOOK = '''() => ({
    links: [...document.querySelectorAll('a[href]')].map(o => o.href),
    ids: [...document.querySelectorAll('[id], a[name]')].map(o => o.id || o.name),
    images: [...document.images].map(o => [o.src, o.complete && o.naturalWidth, o.alt]) })'''
WIDE = '[...document.querySelectorAll("html, .main, .content, article")].some(o => o.scrollWidth > o.clientWidth + 9)'
CONTRAST = '''() => {     // of text to background, by WCAG 2, for everything that one reads
    const rgb = c => c.match(/[\\d.]+/g).map(Number), linear = o => o <= .03928 ? o/12.92 : ((o + .055)/1.055)**2.4
    const light = c => rgb(c).slice(0, 3).reduce((a, o, i) => a + linear(o/255)*[.2126, .7152, .0722][i], 0)
    const behind = o => {
        for (; o; o = o.parentElement) {
            const c = getComputedStyle(o).backgroundColor
            if ((rgb(c)[3] ?? 1) > .9) return c
        }
        return 'rgb(255, 255, 255)' }
    const read = [...document.querySelectorAll('article :is(h1, h2, h3, p, td, th, .highlight pre), .sidebar-tree a')]
    return read.filter(o => o.offsetParent && o.innerText.trim()).map(o => {
        const [a, b] = [light(getComputedStyle(o).color), light(behind(o))].sort((a, b) => b - a)
        return [Math.round(100*(a + .05)/(b + .05))/100, o.innerText.slice(0, 40)]
    }).sort((a, b) => a[0] - b[0])[0] }'''


@pytest.fixture(scope='module')
def tab():
    "A page of a browser; `tab.said` is what consoles said, `tab.asked` which URLs were asked for"
    from playwright.sync_api import sync_playwright
    assert (html/'index.html').exists(), 'build it first: make docs'
    with sync_playwright() as driver:
        args = [o for o in ARGS if 'EXCLUDE' not in o] + ['--host-resolver-rules=MAP * ~NOTFOUND']
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=args)
        tab = browser.new_page(viewport={'width': 1280, 'height': 900}, color_scheme='light')
        tab.said, tab.asked = [], []
        tab.on('console', lambda o: o.type in ('error', 'warning') and tab.said.append((tab.url, o.text)))
        tab.on('pageerror', lambda e: tab.said.append((tab.url, str(e))))
        tab.on('request', lambda o: tab.asked.append(o.url))
        yield tab
        browser.close()


@pytest.fixture(scope='module')
def seen(tab):
    "What stands in each page: path → dict; and its lowest contrast in each theme"
    res = {}
    for path in pages:
        tab.emulate_media(color_scheme='light')
        tab.goto(path.as_uri())
        res[path] = {**tab.evaluate(LOOK), 'light': tab.evaluate(CONTRAST)}
        tab.emulate_media(color_scheme='dark')
        res[path]['dark'] = tab.evaluate(CONTRAST)
        res[path]['background'] = tab.evaluate('getComputedStyle(document.body).backgroundColor')
        tab.set_viewport_size({'width': 390, 'height': 900})
        res[path]['wide'] = tab.evaluate(WIDE)
        tab.set_viewport_size({'width': 1280, 'height': 900})
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


def test_both_themes_are_readable(seen):
    for theme in 'light', 'dark':
        assert not {path.name: o[theme] for path, o in seen.items() if o[theme] and o[theme][0] < 4.5}
    assert {o['background'] for o in seen.values()} == {'rgb(19, 20, 22)'}       # dark, in the end


def test_nothing_sticks_out_on_a_phone(seen): assert not [path.name for path, o in seen.items() if o['wide']]


@pytest.mark.parametrize('word, page',
                         [('lr_find', 'show/04_lr_find.html'), ('GradAccum', 'features/01_gradients.html'),
                          ('torchmetrics', 'howto/04_torchmetrics.html')])
def test_search_finds(tab, word, page):
    tab.goto((html/'index.html').as_uri())
    tab.fill('.sidebar-search', word)
    tab.press('.sidebar-search', 'Enter')
    tab.wait_for_selector('#search-results li a')
    tab.wait_for_function('document.querySelector(".search-summary")?.innerText.match(/\\d/)')
    assert page in [o.split('/html/')[-1].split('?')[0].split('#')[0]
                    for o in tab.evaluate('[...document.querySelectorAll("#search-results li a")].map(o => o.href)')]


def test_the_theme_can_be_chosen(tab):
    tab.goto((html/'index.html').as_uri())
    colors = set()
    for _ in range(3):
        tab.click('.content-icon-container .theme-toggle')
        colors.add(tab.evaluate('getComputedStyle(document.body).backgroundColor'))
    assert len(colors) == 2
    tab.evaluate('localStorage.clear()')


def test_every_public_name_has_an_anchor(seen):
    anchors = {o for page in seen.values() for o in page['ids']}
    names = [o for o in everything.__all__
             if getattr(getattr(everything, o), '__module__', 'trainer_nb').startswith('trainer_nb')
             and o not in ('torch', 'F', 'nn')]
    assert not [o for o in names if not anchors & {o.lower(), o.lower().replace('_', '-')}]
    for verb in 'fit', 'validate', 'predict', 'lr_find', 'describe_hooks', 'resume', 'plot_schedule', 'export':
        assert f'learner-{verb.replace("_", "-")}' in anchors or f'hooked-{verb.replace("_", "-")}' in anchors


def test_twins_and_lists():
    "Each page has its Markdown, `llms.txt` and the sitemap name all of them, and no MyST is left in it"
    docs = {p.relative_to(html).with_suffix('').as_posix() for p in pages} - {'genindex', 'search'}
    assert docs == {p.relative_to(html).with_suffix('').as_posix() for p in html.rglob('*.md')}
    listed = set(re.findall(r'\]\(https://[^/]+/trainer_nb/([^)]+)\.md\)', (html/'llms.txt').read_text()))
    mapped = set(re.findall(r'<loc>https://[^/]+/trainer_nb/([^<]+)\.html</loc>', (html/'sitemap.xml').read_text()))
    assert docs == listed == mapped
    for name in docs:
        text = (html/f'{name}.md').read_text(encoding='utf-8')
        prose = re.sub(r'^(`{3,}).*?^\1', '', text, flags=re.M | re.S)
        assert text.startswith('# ') and len(text) > 200, name
        assert not re.search(r'^:::|^\([\w.-]+\)=$|^\{\.|\]\(#', prose, flags=re.M), name
        for link in re.findall(r'\]\((?!\w+:)([^)#\s]+)', prose):
            assert (html/name).parent.joinpath(link).exists(), (name, link)
