"Every public name is shown at work, links are well formed, and the front page matches the README."
import ast, inspect, json, pydoc, re
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from nbdev.config import get_config
from nbdev.doclinks import nbglob

import trainer_nb.all as everything

root = Path(__file__).parents[1]
notebooks = sorted(nbglob(root/'nbs', as_path=True))
texts = [root/'README.md', root/'CHANGELOG.md', root/'CONTRIBUTING.md', *sorted((root/'nbs').rglob('[!_.]*.qmd'))]
def is_own(o): return getattr(o, '__module__', 'trainer_nb').startswith('trainer_nb') and not inspect.ismodule(o)

names = [o for o in vars(everything) if o[0] != '_' and is_own(getattr(everything, o))]     # also those that `*` leaves

@cache
def cells(path): return json.loads(path.read_text(encoding='utf-8'))['cells']

def source(cell): return ''.join(cell['source'])

def code(path):
    "(tree, has output) of the cells that are not exported"
    for c in cells(path):
        if c['cell_type'] != 'code' or re.search(r'^#\| *(export|hide)', source(c), flags=re.M): continue
        try: yield ast.parse(re.sub(r'^\s*[%!].*', '', source(c), flags=re.M)), bool(c['outputs'])
        except SyntaxError: pass

def used(tree):
    ids = {o.id for o in ast.walk(tree) if isinstance(o, ast.Name)}
    return ids | {o.attr for o in ast.walk(tree) if isinstance(o, ast.Attribute)}

def test_every_public_name_has_a_docstring():
    constants = {'EVENTS', 'STEPS'}
    assert not [o for o in names if o not in constants and not (getattr(everything, o).__doc__ or '').strip()]

def returned(path):
    "(name of a function, words of its return annotation and of the comment beside it)"
    text = path.read_text(encoding='utf-8')
    for o in ast.walk(ast.parse(text)):
        if not isinstance(o, ast.FunctionDef): continue
        last = max([o.lineno, *(a.end_lineno for a in ast.walk(o.args) if hasattr(a, 'end_lineno'))])
        end_of_head = '\n'.join(text.splitlines()[last - 1:o.body[0].lineno - 1])
        for said in re.findall(r'\)((?: -> .*)?:.*)$', end_of_head, flags=re.M)[-1:]:
            yield o.name, {*re.findall(r'\w+', said)}

def test_every_public_name_is_seen_at_work():
    "In a cell with an output, or through a name that such a cell makes of it, or as what a method used there returns"
    shown, returns = set(), {}
    for path in (root/'trainer_nb').rglob('*.py'):
        for name, words in returned(path): returns[name] = returns.get(name, set()) | words
    for path in notebooks:
        trees = list(code(path))
        made = {o.name: used(o) for tree, _ in trees for o in ast.walk(tree)
                if isinstance(o, (ast.FunctionDef, ast.ClassDef))}
        for tree, has_output in trees:
            if has_output: shown |= used(tree).union(*(o.get(name, ()) for name in used(tree) for o in (made, returns)))
    assert not set(names) - shown, f'no cell with an output uses {sorted(set(names) - shown)}'

def links(text):
    text = re.sub(r'```.*?```', '', text, flags=re.S)
    return re.findall(r'\]\(([^)\s]+)\)', text) + re.findall(r'<(https?:[^>\s]+)>', text)

def all_links():
    for path in [*texts, *notebooks]:
        if path.suffix == '.ipynb': parts = [source(c) for c in cells(path) if c['cell_type'] == 'markdown']
        else: parts = [path.read_text(encoding='utf-8')]
        found = [o for part in parts for o in links(part)]
        yield from ((path, o) for o in found)

def is_wrong(link):
    "Is the link malformed? (No host is contacted.)"
    o = urlsplit(link)
    if o.scheme not in ('https', 'mailto'): return True
    if o.netloc.endswith('arxiv.org'): return not re.fullmatch(r'/abs/\d{4}\.\d{4,5}(v\d+)?', o.path)
    return not re.fullmatch(r'([\w-]+\.)+[a-z]{2,}', o.netloc) or '//' in o.path or o.netloc.startswith('localhost')

def test_links():
    "Links to other hosts are well formed, and links to files lead somewhere"
    wrong = []
    for path, link in all_links():
        if re.match(r'\w+:', link): wrong += [(path.name, link)]*is_wrong(link)
        elif link[0] != '#' and not (path.parent/link.split('#')[0]).exists(): wrong.append((path.name, link))
    assert not wrong
    assert is_wrong('http://pytorch.org') and is_wrong('https://arxiv.org/1506.01186')
    assert not is_wrong('https://arxiv.org/abs/1506.01186')

def test_no_merge_is_half_done():
    mark = re.compile(r'^\W*(<{7}|>{7}) ', flags=re.M)
    assert not [path.name for path in [*texts, *notebooks] if mark.search(path.read_text(encoding='utf-8'))]

def test_readme_is_the_front_page():
    "Both begin with the same code"
    first, = re.findall(r'```python\n(.*?)\n```', (root/'README.md').read_text(encoding='utf-8'), flags=re.S)[:1]
    code = next(source(c) for c in cells(root/'nbs/index.ipynb') if c['cell_type'] == 'code')
    assert first == re.sub(r'^#\|.*\n', '', code)

def test_pages_are_made_where_quarto_is(monkeypatch):
    "`nbdev_docs` runs cells that begin with an import, so they must hold only imports; its files are up to date"
    from nbdev import quarto
    mixed = []
    for path in notebooks:
        if not any('default_exp' in source(c) for c in cells(path)): continue
        for tree, _ in code(path):
            is_import = [isinstance(o, (ast.Import, ast.ImportFrom)) for o in tree.body]
            if any(is_import) and not all(is_import): mixed.append((path.name, ast.unparse(tree)[:60]))
    assert not mixed, 'put the imports into a cell of their own'
    cfg = get_config(path=root)
    values = {k: cfg[k] for k in ('title', 'description', 'branch', 'git_url', 'doc_host', 'doc_baseurl')}
    assert (root/'nbs/nbdev.yml').read_text() == quarto._nbdev_yml.format(**values, doc_path=cfg.doc_path.name)
    assert (root/'nbs/_quarto.yml').read_text() == quarto._quarto_yml and (root/'nbs/styles.css').exists()

def test_workflows_call_what_there_is():
    import yaml
    steps = []
    for path in (root/'.github/workflows').glob('*.yml'):
        for job in yaml.safe_load(path.read_text())['jobs'].values(): steps += job['steps']
    targets = re.findall(r'^([a-z-]+):', (root/'Makefile').read_text(), flags=re.M)
    assert all(set(re.findall(r'\bmake ([a-z-]+)', o.get('run', ''))) <= set(targets) for o in steps)
    assert all('uses' in o or 'run' in o for o in steps)

def test_names_differ_between_modules():
    "Names differ whatever their case, because the site links by name"
    homes = {}
    for path in sorted((root/'trainer_nb').rglob('*.py')):
        if path.stem in ('__init__', '__main__', '_modidx', 'all'): continue
        for name in import_module('.'.join(path.relative_to(root).with_suffix('').parts)).__all__:
            homes.setdefault(name.lower(), []).append(f'{path.stem}.{name}')
    assert not [o for o in homes.values() if len(o) > 1] and len(homes) > 200

@pytest.fixture
def site(monkeypatch):
    "The modules that make the pages"
    monkeypatch.syspath_prepend(str(root/'nbs'))
    from types import SimpleNamespace
    return SimpleNamespace(**{o: import_module(f'_{o}') for o in ('names', 'pages', 'site')})

def test_every_public_name_has_its_line_in_the_api(site):
    "In one task, with a link and a sentence, and so has each verb of `Learner`"
    listed = [o for page in site.names.tasks() for o in site.names.names_of(page)]
    shown = [o.shown for o in listed]
    assert sorted(shown) == sorted(set(shown)) and len(site.names.tasks()) >= 8
    assert not set(names) - set(shown) and {'learn.fit', 'learn.lr_find', 'learn.save', 'learn.resume'} <= set(shown)
    assert not [o.shown for o in listed if not site.names.about(o.shown, o.symbol)]
    text = site.names.all_names()
    assert not [o.shown for o in listed if text.count(f'| [`{o.shown}`](#{o.label}) | ') != 1]
    with pytest.raises(ValueError, match='nbs/api'): site.names.task_of('elsewhere.new')

def test_every_page_is_in_the_sidebar(site):
    "Directly, or below a page that lists others"
    seen, todo = set(), site.names.matching(*(o for entries in site.site.SIDEBAR.values() for o in entries))
    while todo:
        page = todo.pop()
        seen.add(page)
        path = site.names.source_of(page)
        parts = [path.read_text(encoding='utf-8')] if path.suffix == '.qmd' else [
            source(c) for c in cells(path) if c['cell_type'] == 'markdown']
        text = site.names.filled('\n\n'.join(parts), page)
        todo += [o for o in re.findall(r'^/(.*)$', text, flags=re.M) if o not in seen]
    assert {*site.names.matching('*')} - seen == {'index'}


HAS_HELP = [o for o in names if inspect.isfunction(getattr(everything, o)) or isinstance(getattr(everything, o), type)]

def described(f):
    "(names of parameters, 'returns' or 'raises'; words) as `help` has them, or beside the fields of a dataclass"
    if isinstance(f, type) and is_dataclass(f):
        for o in fields(f):
            source = re.search(rf'^    {o.name}:[^#\n]*# (.*(?:\n {{20,}}# .*)*)', inspect.getsource(f), flags=re.M)
            if source: yield o.name, re.sub(r'\n +# ', ' ', source[1])
        return
    text = pydoc.plain(pydoc.render_doc(f.__init__ if isinstance(f, type) else f)).partition('Parameters:\n')[2]
    indent = re.match(' *', text)[0]
    rows = []
    for line in text.rstrip().split('\n'):
        if m := re.match(rf'{indent}(\S.*?)  +(\S.*)', line): rows.append([*m.groups()])
        elif rows: rows[-1][1] += ' ' + line.strip()
    yield from map(tuple, rows)

def comments(f):
    "Those beside the parameters and the end of the signature; dataclasses have no such source"
    f = f.__init__ if isinstance(f, type) else f
    if not inspect.isfunction(f) or f.__code__.co_filename[0] == '<': return []
    source = inspect.getsource(f)
    head = re.match(r'.*?\n *\)(?: -> [^\n]+?)?:[^\n]*', source, flags=re.S)
    lines = re.findall(r'(?<=# ).+', head[0]) if head else []
    return list(chain.from_iterable(re.split(r'(?:^|; )raises ', o) for o in lines))

def table_on_page(text):
    "The same, from the rows of a table"
    def plain(s): return re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', s).replace(r'\|', '|')
    for line in re.findall(r'^\| ([^|].+) \|$', text, flags=re.M):
        names, about = re.split(r'(?<!\\) \| ', line, maxsplit=1)
        if re.match(r'\[?`\.', names): continue       # a method
        names = re.findall(r'`(\*{0,2}\w+)|\*(\w+)\*', names)
        yield ', '.join(a or b for a, b in names), plain(about)

def differs_on_its_page(name, site):
    "What is wrong with the table of a name, '' if nothing is"
    *owner, last = name.split('.')
    f = getattr(everything.Learner if owner else everything, last)
    if not is_own(f): return ''     # of another library
    rows = list(table_on_page(re.split('\n(?=### )', site.pages.describe(f, name, set()))[1]))
    wanted, is_class = list(described(f)), isinstance(f, type)
    lost = [o for o in comments(f) if o not in ' '.join(about for _, about in wanted)]
    if lost and (wanted or not owner): return f'no {lost}'
    if (is_class or wanted or not rows) and rows != wanted: return f'{rows} and {wanted}'
    order = [o for o, _ in rows]
    if {'returns', 'raises'} & {*order[:-1]}: return f'{order[-1]} is last'
    if not rows or is_class: return ''
    named = {o.strip('* ') for row in order for o in row.split(',')} - {'returns', 'raises'}
    unknown = named - {*inspect.signature(f).parameters}
    return f'{unknown} are no parameters' if unknown else ''

def test_the_table_of_a_page_is_that_of_help(site):
    "Each row with all words of the comments beside it, in the order of the signature, and what is returned last"
    methods = [o for o in dir(everything.Learner) if o[0] != '_' and inspect.isfunction(getattr(everything.Learner, o))]
    found = {name: differs_on_its_page(name, site) for name in [*HAS_HELP, *(f'Learner.{o}' for o in methods)]}
    assert len(found) > 100 and not {name: text for name, text in found.items() if text}

def test_reference_pages_begin_with_what_is_public(site):
    "Each public class and function once, with its table, before anything else; and an example where there is one"
    n_examples = 0
    for page in site.names.pages_of('api/01_train') + site.names.pages_of('api/06_save') + ['show/04_lr_find']:
        public = site.names.public_on(page)
        found = site.pages.read_page(root/f'nbs/{page}.ipynb', public).cells
        end = next(i for i, c in enumerate(found) if c.source == '## How it works')
        head = '\n'.join(c.source for c in found[:end] if c.cell_type == 'markdown')
        rest = '\n'.join(c.source for c in found[end:] if c.cell_type == 'markdown')
        for o in public:
            if not hasattr(o.symbol, '__qualname__'): continue
            assert head.count(f'({o.label})=') == 1 and f'({o.label})=' not in rest
        assert re.match(r'\s*\(', found[2].source) and '\n## ' not in f'{head}\n{rest}'.replace('\n## How', '')
        assert not re.findall(r'^#+ .*\b_\w+$', head + rest, flags=re.M)
        shown = [c for c in found[:end] if c.cell_type == 'code']
        assert all(c.outputs for c in shown) and not any(re.search('^assert ', c.source, flags=re.M) for c in shown)
        n_examples += len(shown)
    assert n_examples > 15

def test_an_example_of_a_reference_page_runs_by_itself(site, page='save/05_early_stopping'):
    "All code of its opening, in a fresh module"
    cells = site.pages.read_page(root/f'nbs/{page}.ipynb', site.names.public_on(page)).cells
    end = next(i for i, c in enumerate(cells) if c.source == '## How it works')
    code = '\n'.join(c.source for c in cells[:end] if c.cell_type == 'code')
    assert code.count('import *') == 1
    exec(code, {'__name__': 'example'})

def test_links_in_links_are_flat(site):
    "A name inside a link leads where the link leads"
    flat = site.pages.myst_text('See [with [`AMP`](#amp) and\n[`EMA`](#ema)](02_amp.ipynb) or [`EMA`](#ema) [1](a.md).')
    assert flat == 'See [with `AMP` and\n`EMA`](02_amp.ipynb) or [`EMA`](#ema) [1](a.md).'

def test_what_is_a_check_and_what_a_chart(site):
    import base64, io
    from PIL import Image
    assert site.pages.is_check('assert 1\nassert 2') and not site.pages.is_check('x = 1\nassert x')
    assert not site.pages.is_check('') and not site.pages.is_check('%time 1')
    def png(color, dot):
        image, file = Image.new('RGB', (20, 20), color), io.BytesIO()
        image.paste(dot, (5, 5, 15, 15))
        image.save(file, 'png')
        return base64.b64encode(file.getvalue())
    assert site.pages.is_chart(png('white', 'blue')) and not site.pages.is_chart(png('grey', 'white'))

def test_a_picture_is_described_by_its_axes_or_the_sentence_before_it(site):
    text = '## Look\n\nIt ends. The *dotted* lines are [the `bounds`](a.ipynb):'
    assert site.pages.last_words(text) == 'The dotted lines are the bounds'
    assert site.pages.last_words('Words.\n\n* a list') == site.pages.last_words('## Look') == ''
    alts = [o.metadata.mystnb['image']['alt'] for o in site.pages.read_page(root/'nbs/tutorials/05_gan.ipynb').cells
            if 'image' in o.metadata.get('mystnb', {})]
    assert 'training loss by batch, gradient norm by batch' in alts
    assert alts[2] == 'Here are some from the same twelve noise vectors, before training and after 1, 2, 4 and 8 epochs'

def test_completion_shows_what_a_user_needs():
    "Tab after `learn.` or `learn.history.` shows verbs and parts; nothing is hidden by hand"
    from torch import nn
    from trainer_nb.loop.history import History
    learn = everything.Learner(nn.Linear(2, 1), [], loss_fn=nn.MSELoss(), display=False)
    def shown(o): return {name for name in dir(o) if name[0] != '_'}
    assert len(shown(learn)) <= 84
    assert {'fit', 'lr_find', 'predict', 'validate', 'history', 'model', 'describe_hooks', 'save',
            'show'} <= shown(learn)
    assert not {o for o in vars(type(learn)) if o[0] != '_'} - shown(learn) - {'lr', 'epochs'}
    assert len(shown(History())) <= 13 and {'epochs', 'steps', 'valids', 'plot'} <= shown(History())
