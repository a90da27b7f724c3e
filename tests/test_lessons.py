"""The lessons about one's own data: short, with a score that is checked,
and a prediction for a new file. `test_notebooks.py` runs them"""
import ast, re, subprocess, sys
from pathlib import Path

import pytest

from common import cells, lines

lessons = sorted((Path(__file__).parents[1]/'nbs/lessons').glob('*.ipynb'))


def calls(source):
    return {o.func.attr for o in ast.walk(ast.parse(source)) if isinstance(o, ast.Call)
            and isinstance(o.func, ast.Attribute)}


each = pytest.mark.parametrize('path', lessons, ids=lambda o: o.stem)

@each
def test_twelve_lines_lead_from_files_to_a_prediction(path):
    short, = [o for o in cells(path) if re.match(r'#\| *short\b', o)]
    assert len(lines(short)) <= 12 and max(map(len, lines(short))) <= 120
    assert {'predict', 'export'} & calls(short) and {'fit', 'fit_one_cycle'} & calls(short)
    assert 'import ' not in short       # they stand above

def n_statements(*sources):
    "Count statements, imports left out: a long line counts once, and so does a line of several inputs"
    nodes = [o for source in sources for o in ast.walk(ast.parse(source))]
    nodes = [o for o in nodes if isinstance(o, ast.stmt) and not isinstance(o, ast.Import | ast.ImportFrom)]
    return sum(not isinstance(o, ast.Expr) or not isinstance(o.value, ast.Constant) for o in nodes)

def written(*sources):
    "Count lines as ruff formats them, without imports, comments and blank lines"
    res = []
    for source in sources:
        tree = [o for o in ast.parse(source).body if not isinstance(o, ast.Import | ast.ImportFrom)]
        source = '\n'.join(map(ast.unparse, tree))
        command = [sys.executable, '-m', 'ruff', 'format', '--line-length=100', '-']
        done = subprocess.run(command, input=source, text=True, capture_output=True, check=True)
        res += [o for o in done.stdout.splitlines() if o.strip()]
    return len(res)

def ours(path):
    "The first program of a lesson, and the one that predicts in another process"
    code = cells(path)
    [short], [script] = ([o for o in code if has in o] for has in ('#| short', 'script.write_text'))
    found = [o.value for o in ast.walk(ast.parse(script)) if isinstance(o, ast.Constant)]
    [text] = [o for o in found if 'from trainer_nb.all' in str(o)]
    return short, '\n'.join(o for o in text.splitlines() if 'sys.argv[1:]' not in o)

def theirs(name):
    "The program of fastai with the same network, where one can pass it; with a network of fastai; and what predicts"
    source = (lessons[0].parents[2]/'benchmarks/fastai'/name).with_suffix('.py').read_text(encoding='utf-8')
    parts = re.split(r'^# (train|train, with a network of fastai|predict)$', source, flags=re.M)[1:]
    parts = dict(zip(parts[::2], parts[1::2]))
    return parts.get('train'), parts['train, with a network of fastai'], parts['predict']

def test_programs_are_as_short_as_with_fastai():
    "From files to a prediction in another process; the page says how long both are"
    text = (lessons[0].parents[1]/'howto/07_from_fastai.ipynb').read_text(encoding='utf-8')
    rows = dict(re.findall(r'lessons/\d+_(\w+)\.ipynb\) ((?:\| [^|]+ )+)\|', text))
    assert rows.keys() == {'images', 'table', 'text', 'segmentation'}
    assert len(lessons) == 7
    for path in lessons[:4]:
        name, mine = path.stem[3:], ours(path)
        same, own, last = theirs(name)
        net = next((o for o in cells(path) if 'class UNet' in o), None)
        n = [[f(o, last) if o else None for o in (same, own)] + [f(*mine)] for f in (n_statements, written)]
        shown = [' / '.join('–' if o is None else str(o) for o in pair) for pair in zip(*n)]
        if net: shown[2] += f', and {n_statements(net)} / {written(net)} for the U-Net'
        assert rows[name].strip('| ').split(' | ')[:3] == shown, (name, shown)
        for a, b, here in n: assert here <= (b if a is None else a)

@each
def test_scores_are_checked_and_another_process_predicts_from_new_files(path):
    "with a program that the lesson writes, and whose answers it compares"
    code = cells(path)
    assert re.search('^ *assert .*((accuracy|auroc|dice|form|runs).*> |mase.*< )', '\n'.join(code), flags=re.M)
    [i] = [i for i, o in enumerate(code) if 'script.write_text' in o]
    check = '\n'.join(code[i + 1:i + 3])
    assert re.search(r'sys\.executable, script', code[i]) and 'learn.predict' in check and 'assert' in check
    assert re.search(r'path|new', [o for o in code if 'predict' in calls(o)][-1]), 'the last one is for a new file'

@pytest.mark.soak
@pytest.mark.parametrize('name, library', [('06_adapters', 'peft'), ('07_pretrained', 'timm')])
def test_sections_with_other_libraries(name, library, tmp_path, monkeypatch):
    pytest.importorskip(library, reason=f'needs {library}')
    monkeypatch.setattr('tempfile.mkdtemp', lambda: str(tmp_path))
    names = {'__name__': 'lesson'}
    for o in cells(next(o for o in lessons if o.stem == name)): exec(o, names)
    if library == 'peft': assert names['there'].validate() == names['learn'].validate() and names['there'].validate()
    else: assert names['learn'].state.epoch == 2 and 'fc' in names['learn'].opt.param_groups[0]['name']
