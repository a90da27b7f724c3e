"""Run notebooks in real kernels and store their outputs: `python nbs/_run.py [--check] [NOTEBOOK ...]`

`--check` stores nothing, and fails if the outputs differ from the stored ones. Times are not compared, nor are outputs
of cells with `#| measured`. Numbers may differ by 2 %, as on another CPU, and pictures slightly, as with another font.
As many notebooks run at a time as there are cores, two at least; on Linux their kernels are forked from a process that
has imported torch (`_fork.py`). The list at the end has the slowest ones first.
"""
import os, re, subprocess, sys
from base64 import b64decode
from concurrent.futures import ProcessPoolExecutor
from io import BytesIO
from itertools import repeat
from math import isclose
from multiprocessing import get_context
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory, gettempdir
from time import perf_counter

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbdev.clean import nbdev_clean
from nbdev.config import get_config
from nbdev.doclinks import nbglob
from nbdev.process import extract_directives
from traitlets import default

os.environ.update(      # the same sums, in the same order, on many machines
    OMP_NUM_THREADS='1', ATEN_CPU_CAPABILITY='avx2', ONEDNN_MAX_CPU_ISA='AVX2', MKL_CBWR='COMPATIBLE',
    TORCHINDUCTOR_CACHE_DIR=str(Path(gettempdir())/'trainer_nb-avx2'))      # torch's own cache may hold other code
cfg = get_config()
left_out = set(cfg.tst_flags.split())
fork = str(Path(__file__).with_name('_fork.py'))


def directives(cell): return extract_directives(cell, remove=False) if cell.cell_type == 'code' else {}


class Runner(NotebookClient):
    "Skips the cells that `nbdev_test` skips"
    async def async_execute_cell(self, cell, *args, **kwargs):
        flags = directives(cell)
        is_off = left_out & flags.keys() or flags.get('eval:') == ['false']
        if is_off or 'nbdev_export()' in cell.source: return cell
        return await super().async_execute_cell(cell, *args, **kwargs)


class Forked(AsyncKernelManager):
    "Its kernels are forked from a process that has imported torch: see `_fork.py`"
    @default('transport')
    def _without_ports(self): return 'ipc'      # of which two that start together may choose the same

    @default('ip')
    def _socket(self): return f"{os.environ['TRAINER_NB_FORK']}-{token_hex(4)}"

    def format_kernel_cmd(self, extra_arguments=None):
        return [sys.executable, '-SE', fork, os.environ['TRAINER_NB_FORK'], '-f', self.connection_file,
                *(extra_arguments or ())]


def execute(path, to):
    "Run the notebook at `path`, and write it with its outputs `to` a file"
    nb = nbformat.read(path, 4)
    nb.metadata.pop('widgets', None)
    manager = Forked if sys.platform == 'linux' else AsyncKernelManager
    Runner(nb, kernel_name='python3', kernel_manager_class=manager, coalesce_streams=True,
           resources={'metadata': {'path': path.parent}}, extra_arguments=['--log-level=ERROR']).execute()
    text = nbformat.writes(nb)
    widgets = nb.metadata.get('widgets', {}).get('application/vnd.jupyter.widget-state+json', {})
    state = widgets.get('state', {})
    for i, o in enumerate(state): text = text.replace(o, f'{i:032x}')    # the same widget ids in every run
    to.write_text(text, encoding='utf-8')
    nbdev_clean(str(to))


def is_same_picture(a, b):  # PNG in base64
    from matplotlib.image import imread
    a, b = (imread(BytesIO(b64decode(o))) for o in (a, b))
    return a.shape == b.shape and abs(a - b).mean() < .01


def is_same(a, b, key=None):
    "Are two outputs, as nbformat holds them, the same?"
    if isinstance(a, dict) and isinstance(b, dict):
        drawn = {'text/html'} if 'image/png' in a else set()    # the PNG again
        return a.keys() == b.keys() and all(is_same(a[k], b[k], k) for k in a.keys() - drawn)
    if isinstance(a, list) and isinstance(b, list): return len(a) == len(b) and all(map(is_same, a, b))
    if not (isinstance(a, str) and isinstance(b, str)): return a == b
    return a == b or (is_same_picture(a, b) if key == 'image/png' else is_same_text(*map(without_times, (a, b))))


NUMBER = re.compile(r'\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+')

def is_same_text(a, b):
    "Are two texts the same, but for numbers that differ by 2 %? Each kind of CPU rounds in its own way"
    words = [' '.join(NUMBER.sub('0', o).split()) for o in (a, b)]
    numbers = zip(*(map(float, NUMBER.findall(o)) for o in (a, b)))
    return words[0] == words[1] and all(isclose(x, y, rel_tol=.02) for x, y in numbers)


def without_times(text): return re.sub(r' *(\b\d\d:\d\d\b|\b\d+(\.\d+)? m?s\b|\btime\b)', ' time', text)


def changes(path):
    "A message for each cell whose outputs differ from the stored ones"
    with TemporaryDirectory() as folder:
        execute(path, to := Path(folder)/path.name)
        cells = zip(nbformat.read(path, 4).cells, nbformat.read(to, 4).cells)
        cells = [(a, b) for a, b in cells if 'measured' not in directives(a)]
        other = [a.source for a, b in cells if not is_same(a.get('outputs'), b.get('outputs'))]
    return [f'the outputs of this cell differ from the stored ones\n{o}' for o in other]


def one(path, is_check):
    "(messages, seconds) of one notebook; without messages it is as it should be"
    start = perf_counter()
    try: messages = changes(path) if is_check else execute(path, path)
    except Exception as e: messages = [f'{type(e).__name__}: {e}']
    return messages or [], perf_counter() - start


def main(*args):
    paths = [Path(o) for o in args if o != '--check'] or sorted(nbglob(cfg.nbs_path, as_path=True))
    paths.sort(key=lambda o: -o.stat().st_size)     # large ones, which mostly take long, come first
    n_workers = max(2, os.cpu_count() or 2)
    with TemporaryDirectory() as folder:
        os.environ['TRAINER_NB_FORK'] = path = f'{folder}/kernels'
        with subprocess.Popen([sys.executable, fork, 'serve', path], stdout=subprocess.PIPE, text=True) as server:
            server.stdout.readline()
            try:
                with ProcessPoolExecutor(min(n_workers, len(paths)), get_context('spawn')) as pool:
                    done = [*pool.map(one, paths, repeat('--check' in args))]
            finally: server.terminate()
    rows = sorted(zip(paths, done), key=lambda row: -row[1][1])
    for path, (messages, time_s) in rows:
        print(f'{time_s:6.1f} s  {path}')
        for o in messages: print(f'{path}: {o}\n')
    failed = [path for path, (messages, _) in rows if messages]
    if failed and '--check' in args: print('To store the outputs: python nbs/_run.py', *failed)
    return bool(failed)


if __name__ == '__main__': sys.exit(main(*sys.argv[1:]))
