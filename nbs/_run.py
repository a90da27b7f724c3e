"Run notebooks in a real kernel and store their outputs: `python nbs/_run.py [NOTEBOOK ...]`"
import os, sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbdev.clean import nbdev_clean
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.process import extract_directives

os.environ.setdefault('OMP_NUM_THREADS', '1')     # the same sums, in the same order, on every machine
cfg = get_config()
left_out = set(cfg.tst_flags.split())


class Runner(NotebookClient):
    "Leaves the cells alone that `nbdev_test` skips"
    async def async_execute_cell(self, cell, *args, **kwargs):
        flags = extract_directives(cell, remove=False) if cell.cell_type == 'code' else {}
        if left_out & flags.keys() or flags.get('eval:') == ['false'] or 'nbdev_export()' in cell.source: return cell
        return await super().async_execute_cell(cell, *args, **kwargs)


for path in map(Path, sys.argv[1:] or sorted(nbglob(cfg.nbs_path))):
    nb = nbformat.read(path, 4)
    nb.metadata.pop('widgets', None)
    Runner(nb, kernel_name='python3', coalesce_streams=True, resources={'metadata': {'path': path.parent}}).execute()
    text = nbformat.writes(nb)
    state = nb.metadata.get('widgets', {}).get('application/vnd.jupyter.widget-state+json', {}).get('state', {})
    for i, o in enumerate(state): text = text.replace(o, f'{i:032x}')    # the same widget ids in every run
    path.write_text(text, encoding='utf-8')
    nbdev_clean(str(path))
    print(path)
