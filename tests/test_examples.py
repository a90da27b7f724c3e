"""The pages of known programs: each trains with a `Learner` in fewer lines than the loop by hand beside it, and
compares the weights. `test_notebooks.py` runs them"""
import re
from pathlib import Path

import pytest

from common import cells, lines

folder = Path(__file__).parents[1]/'nbs/examples'
gallery, *pages = sorted(folder.glob('*.ipynb'))

def test_there_are_twelve_and_the_gallery_shows_each():
    "With its title, and what it shows in the end"
    assert len(pages) >= 12
    listed = re.findall(r'^## \[(.+)\]\((\w+)\.ipynb\)$', '\n'.join(cells(gallery, 'markdown')), flags=re.M)
    assert listed == [(cells(o, 'markdown')[0].splitlines()[0].removeprefix('# '), o.stem) for o in pages]
    shown = re.findall(r"^(?:picture|words)\('(\w+)'", '\n'.join(cells(gallery)), flags=re.M)
    assert [*dict.fromkeys(shown)] == [o.stem for o in pages]

@pytest.mark.parametrize('path', pages, ids=lambda o: o.stem)
def test_training_takes_fewer_lines_than_the_loop_and_weights_are_compared(path):
    "Functions that both use are counted for neither"
    code = cells(path)
    [train], [loop] = ([o for o in code if o.startswith(f'#| {name}\n')] for name in ('learner', 'plain'))
    assert code[-1] == loop and re.search(r'^assert all\(torch\.equal\(', loop, flags=re.M)
    both = {o for o in re.findall(r'^def (\w+)', train, flags=re.M) if re.search(rf'\b{o}\(', loop)}
    ours = [o for o in re.split(r'\n\n|\n(?=def)', train) if not re.match(rf'def ({"|".join(both) or "-"})\b', o)]
    body = loop[loop.index('def by_hand'):].split('\n\n')[0]
    assert len(lines('\n'.join(ours))) < len(lines(body))
