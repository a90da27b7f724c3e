"The lessons about one's own data are short. `test_notebooks.py` runs them"
import re
from pathlib import Path

import pytest

from common import cells, lines

lessons = sorted((Path(__file__).parents[1]/'nbs/lessons').glob('0[1-7]*.ipynb'))     # the eighth is about labels


@pytest.mark.parametrize('path', lessons, ids=lambda o: o.stem)
def test_twelve_lines_lead_from_files_to_a_prediction(path):
    short, = [o for o in cells(path) if re.match(r'#\| *short\b', o)]
    assert len(lines(short)) <= 12 and max(map(len, lines(short))) <= 120
    assert re.search(r'\.(predict|export)\(', short) and re.search(r'\.fit(_one_cycle)?\(', short)
    assert 'import ' not in short       # they stand above

@pytest.mark.soak
@pytest.mark.parametrize('name, library', [('06_adapters', 'peft'), ('07_pretrained', 'timm')])
def test_sections_with_other_libraries(name, library, tmp_path, monkeypatch):
    pytest.importorskip(library, reason=f'needs {library}')
    monkeypatch.setattr('tempfile.mkdtemp', lambda: str(tmp_path))
    names = {'__name__': 'lesson'}
    for o in cells(next(o for o in lessons if o.stem == name)): exec(o, names)
    if library == 'peft': assert names['there'].validate() == names['learn'].validate() and names['there'].validate()
    else: assert names['learn'].state.epoch == 2 and 'fc' in names['learn'].opt.param_groups[0]['name']
