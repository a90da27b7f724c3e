"Every public name is shown at work, links are well formed, and the front page matches the README."
import ast, inspect, pydoc, re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from nbdev.doclinks import nbglob

import trainer_nb.all as everything
from common import cells, read_cells

root = Path(__file__).parents[1]
notebooks = sorted(nbglob(root/'nbs', as_path=True))
texts = [root/'README.md', root/'CHANGELOG.md', root/'CONTRIBUTING.md', *sorted((root/'nbs').rglob('[!_.]*.qmd'))]
def is_own(o): return getattr(o, '__module__', 'trainer_nb').startswith('trainer_nb') and not inspect.ismodule(o)

names = [o for o in vars(everything) if o[0] != '_' and is_own(getattr(everything, o))]     # also those that `*` leaves

def shown_code(path):
    "Trees of the cells that have outputs, and are not exported"
    for source, outputs, _ in read_cells(path):
        if not outputs or re.search(r'^#\| *(export|hide)', source, flags=re.M): continue
        with suppress(SyntaxError): yield ast.parse(re.sub(r'^\s*[%!].*', '', source, flags=re.M))

def used(tree):
    ids = {o.id for o in ast.walk(tree) if isinstance(o, ast.Name)}
    return ids | {o.attr for o in ast.walk(tree) if isinstance(o, ast.Attribute)}

def test_every_public_name_has_a_docstring_and_is_seen_at_work():
    "In a cell with an output; `results.confusion()` and `data_map.review()` return the first two there"
    constants = {'EVENTS', 'STEPS'}
    assert not [o for o in names if o not in constants and not (getattr(everything, o).__doc__ or '').strip()]
    shown = {'Confusion', 'Review'}.union(*(used(tree) for path in notebooks for tree in shown_code(path)))
    assert not set(names) - shown, f'no cell with an output uses {sorted(set(names) - shown)}'

def links(path):
    "Targets of the links on a page"
    for part in cells(path, 'markdown') if path.suffix == '.ipynb' else [path.read_text(encoding='utf-8')]:
        text = re.sub(r'```.*?```', '', part, flags=re.S)
        yield from re.findall(r'\]\(([^)\s]+)\)', text) + re.findall(r'<(https?:[^>\s]+)>', text)

def test_links():
    "Links to other hosts are well formed (none is contacted), and links to files lead somewhere"
    host = r'https://(arxiv\.org/abs/\d{4}\.\d{4,5}(v\d+)?$|(?!([\w-]+\.)*arxiv\.org)([\w-]+\.)+[a-z]{2,}(?![\w.:-]))'
    def is_wrong(path, link):
        if re.match(r'\w+:', link): return not re.match(rf'{host}|mailto:', link)
        return link[0] != '#' and not (path.parent/link.split('#')[0]).exists()
    assert not [(path.name, o) for path in [*texts, *notebooks] for o in links(path) if is_wrong(path, o)]

def test_readme_is_the_front_page():
    "Both begin with the same code"
    first, = re.findall(r'```python\n(.*?)\n```', (root/'README.md').read_text(encoding='utf-8'), flags=re.S)[:1]
    assert first == re.sub(r'^#\|.*\n', '', cells(root/'nbs/index.ipynb')[0])

def public():
    "(name, object) of what all modules offer"
    for path in sorted((root/'trainer_nb').rglob('*.py')):
        if path.stem in ('__init__', '__main__', '_modidx', 'all'): continue
        module = import_module('.'.join(path.relative_to(root).with_suffix('').parts))
        yield from ((o, getattr(module, o)) for o in module.__all__)

def lacks(f):
    "What a function lacks: names of parameters, and 'return'"
    params = inspect.signature(f).parameters.values()
    bare = [o.name for o in params if o.annotation is o.empty and o.name not in ('self', 'cls')]
    return bare + ['return']*('return' not in f.__annotations__ and f.__name__ != '__init__')

def test_names_differ_and_signatures_are_annotated():
    "The site links by name, whatever its case; type checkers and completion read annotations"
    made, lower = {}, [name.lower() for name, _ in public()]
    assert sorted(lower) == sorted(set(lower))
    for name, o in public():
        members = vars(o).items() if isinstance(o, type) else [('', o)]
        made |= {f'{name}.{k}': getattr(f, '__func__', f) for k, f in members if k[:1] != '_' or k == '__init__'}
    made = {k: f for k, f in made.items() if inspect.isfunction(f) and f.__name__ != '<lambda>'}
    found = {k: f for k, f in made.items() if f.__code__.co_filename.startswith(str(root))}     # not of dataclasses
    assert len(found) > 300 and not {name: what for name, f in found.items() if (what := lacks(f))}

def test_every_public_name_has_its_line_in_the_api(monkeypatch):
    "In one task, with a link and a sentence, and so has each verb of `Learner`"
    monkeypatch.syspath_prepend(str(root/'nbs'))
    pages = import_module('_pages')
    listed = [o for page in pages.asked() for o in pages.names_of(page)]
    shown = [o.shown for o in listed]
    assert sorted(shown) == sorted(set(shown)) and len(pages.asked()) >= 8
    assert not set(names) - set(shown) and {'learn.fit', 'learn.lr_find', 'learn.save', 'learn.resume'} <= set(shown)
    assert not [o.shown for o in listed if not pages.about(o.shown, o.symbol)]
    text = pages.all_names()
    assert not [o.shown for o in listed if text.count(f'| [`{o.shown}`](#{o.label}) | ') != 1]
    with pytest.raises(ValueError, match='nbs/api'): pages.task_of('elsewhere.new')

def test_reference_pages_show_the_exported_source(monkeypatch):
    "Folded, word for word; a method has no other one than its class"
    monkeypatch.syspath_prepend(str(root/'nbs'))
    page = import_module('_pages').read_page(root/'nbs/save/03_checkpoint.ipynb')
    folded = re.findall(r'<details class="source">.*?</details>', '\n'.join(c.source for c in page.cells), flags=re.S)
    for name in 'Checkpoint', 'save', 'load', 'rewind', 'load_best':
        f = getattr(import_module('trainer_nb.save.checkpoint'), name)
        assert sum(inspect.getsource(f).rstrip() in o for o in folded) == 1, name
    assert not [o for o in folded if o.count('\n') < 5]

def test_help_has_the_comments_beside_parameters():
    "Of public functions and of what makes a public class; dataclasses have no such source"
    made = [getattr(everything, o) for o in names]
    made = [o.__init__ if isinstance(o, type) else o for o in made]
    made = [o for o in made if inspect.isfunction(o) and o.__code__.co_filename[0] != '<']
    said = [(o, re.match(r'.*?\n *\)(?: -> [^\n]+?)?:[^\n]*', inspect.getsource(o), flags=re.S)) for o in made]
    words = [(o, re.findall(r'(?<=# )[^\W_]+', head[0])) for o, head in said if head and '# ' in head[0]]
    assert len(words) > 50 and not [o for o, found in words for w in found if w not in pydoc.render_doc(o)]

def test_the_verbs_that_everybody_needs_come_first(monkeypatch):
    "In help, on the API page, and on the page of the class"
    verbs = ['fit', 'predict', 'validate', 'lr_find', 'describe_hooks']
    listed = inspect.getdoc(everything.Learner).splitlines()[2:7]
    assert [o.split()[0] for o in listed] == verbs and listed[0] in pydoc.render_doc(everything.Learner)[:3000]
    monkeypatch.syspath_prepend(str(root/'nbs'))
    pages = import_module('_pages')
    assert [o.shown for o in pages.names_of('api/01_train', True)[1:6]] == [f'learn.{o}' for o in verbs]
    verbs.remove('lr_find')     # of another page
    own = [o.shown for o in pages.names_on('loop/14_learner')]
    assert own[1:5] == [f'learn.{o}' for o in verbs] and own[-1] == 'learn.check_thread'

def test_completion_shows_what_a_user_needs():
    "Tab after `learn.` or `learn.history.` shows verbs and parts; nothing is hidden by hand"
    from torch import nn
    from trainer_nb.loop.history import History
    learn = everything.Learner(nn.Linear(2, 1), [], loss_fn=nn.MSELoss(), display=False)
    def shown(o): return {name for name in dir(o) if name[0] != '_'}
    assert len(shown(learn)) <= 91
    assert {'fit', 'lr_find', 'predict', 'validate', 'history', 'model', 'describe_hooks', 'save',
            'show'} <= shown(learn)
    assert not {o for o in vars(type(learn)) if o[0] != '_'} - shown(learn) - {'lr', 'epochs'}
    assert len(shown(History())) <= 13 and {'epochs', 'steps', 'valids', 'plot'} <= shown(History())
