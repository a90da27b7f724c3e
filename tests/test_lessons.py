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


def test_there_are_five():
    names = '01_images', '02_table', '03_text', '04_segmentation', '05_forecasting'
    assert tuple(o.stem for o in lessons) == names

@pytest.mark.parametrize('path', lessons, ids=lambda o: o.stem)
def test_twelve_lines_lead_from_files_to_a_prediction(path):
    short, = [o for o in cells(path) if re.match(r'#\| *short\b', o)]
    assert len(lines(short)) <= 12 and max(map(len, lines(short))) <= 120
    assert {'fit', 'predict'} <= calls(short)
    # they stand above
    assert not any(isinstance(o, ast.Import | ast.ImportFrom) for o in ast.walk(ast.parse(short)))

@pytest.mark.parametrize('path', lessons, ids=lambda o: o.stem)
def test_accuracies_and_new_files(path):
    code = cells(path)
    asserts = [ast.unparse(o.test) for source in code for o in ast.walk(ast.parse(source)) if isinstance(o, ast.Assert)]
    assert any(re.search(r'accuracy|auroc|dice', o) and '> ' in o or 'mase' in o and '< ' in o for o in asserts)
    last = [o for o in code if 'predict' in calls(o)][-1]
    assert re.search(r'path|new', last), 'the last prediction is for a new file'
