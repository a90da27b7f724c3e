"""The lessons about one's own data: short, with a score that is checked,
and a prediction for a new file. `test_notebooks.py` runs them"""
import ast, json, re
from pathlib import Path

import pytest

lessons = sorted((Path(__file__).parents[1]/'nbs/lessons').glob('*.ipynb'))


def cells(path):
    "Sources of the code cells"
    return [''.join(c['source'])
            for c in json.loads(path.read_text(encoding='utf-8'))['cells'] if c['cell_type'] == 'code']

def lines(source): return [o for o in source.splitlines() if o.strip() and not o.lstrip().startswith('#')]

def calls(source):
    return {o.func.attr for o in ast.walk(ast.parse(source)) if isinstance(o, ast.Call)
            and isinstance(o.func, ast.Attribute)}


def test_there_are_seven():
    names = ('01_images', '02_table', '03_text', '04_segmentation', '05_forecasting', '06_adapters',
             '07_pretrained')
    assert tuple(o.stem for o in lessons) == names

@pytest.mark.parametrize('path', lessons, ids=lambda o: o.stem)
def test_twelve_lines_lead_from_files_to_a_prediction(path):
    short, = [o for o in cells(path) if re.match(r'#\| *short\b', o)]
    assert len(lines(short)) <= 12 and max(map(len, lines(short))) <= 120
    assert 'predict' in calls(short) and {'fit', 'fit_one_cycle'} & calls(short)
    # they stand above
    assert not any(isinstance(o, ast.Import | ast.ImportFrom) for o in ast.walk(ast.parse(short)))

def test_the_page_about_fastai_counts_right():
    "Lines until the fit; of the lesson about masks, those of its network, too"
    text = (lessons[0].parents[1]/'howto/07_from_fastai.ipynb').read_text(encoding='utf-8')
    rows = re.findall(r'lessons/(\w+)\.ipynb\) \| \d+ \| (\d+)(?:, and (\d+) for the U-Net)? \|', text)
    for path, row in zip(lessons, sorted(rows)):
        short, = [o for o in cells(path) if re.match(r'#\| *short\b', o)]
        n = next(i for i, o in enumerate(lines(short), 1) if 'learn.fit' in o)
        nets = [str(len(lines(o))) for o in cells(path) if 'class UNet' in o]
        assert row == (path.stem, str(n), *(nets or ['']))
    assert len(rows) == 4

@pytest.mark.parametrize('path', lessons, ids=lambda o: o.stem)
def test_accuracies_and_new_files(path):
    code = cells(path)
    asserts = [ast.unparse(o.test) for source in code for o in ast.walk(ast.parse(source)) if isinstance(o, ast.Assert)]
    is_score = re.compile('(accuracy|auroc|dice|form|runs).*> |mase.*< ').search
    assert any(map(is_score, asserts))
    last = [o for o in code if 'predict' in calls(o)][-1]
    assert re.search(r'path|new', last), 'the last prediction is for a new file'

@pytest.mark.parametrize('path', lessons, ids=lambda o: o.stem)
def test_another_process_predicts_from_new_files(path):
    "with a program that the lesson writes, and whose answers it compares"
    code = cells(path)
    [i] = [i for i, o in enumerate(code) if 'script.write_text' in o]
    check = '\n'.join(code[i + 1:i + 3])
    assert re.search(r'sys\.executable, script', code[i]) and 'learn.predict' in check and 'assert' in check

@pytest.mark.soak
@pytest.mark.parametrize('name, library', [('06_adapters', 'peft'), ('07_pretrained', 'timm')])
def test_sections_with_other_libraries(name, library, tmp_path, monkeypatch):
    pytest.importorskip(library, reason=f'needs {library}')
    monkeypatch.setattr('tempfile.mkdtemp', lambda: str(tmp_path))
    names = {'__name__': 'lesson'}
    for o in cells(next(o for o in lessons if o.stem == name)): exec(o, names)
    if library == 'peft': assert names['there'].validate() == names['learn'].validate() and names['there'].validate()
    else: assert names['learn'].state.epoch == 2 and 'fc' in names['learn'].opt.param_groups[0]['name']
