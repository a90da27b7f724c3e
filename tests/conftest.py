import gc, re, signal, sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest, torch, torch._dynamo      # which the first optimizer imports

tests = Path(__file__).parent
# for common.py, and for tests that import from those of another subpackage, whatever pytest's import mode is
sys.path[:0] = [str(tests), *sorted({str(o.parent) for o in tests.glob('*/test_*.py')} - {str(tests/'browser')})]
# as under nohup
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN: signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)                            # sums in one order, and no fight for the cores
if sys.platform == 'darwin': torch.accelerator.is_available = lambda: False    # a hosted Mac has no memory for its GPU


# files that take longest, and begin first, so that no worker is left with one of them at the end
FIRST = ['show/test_front_ends.py', 'runs/test_check_resume.py', 'runs/test_runs.py', 'parallel/test_distributed.py',
         'features/test_compile.py', 'browser/test_fit.py', 'test_package.py', 'browser/test_controls.py',
         'loop/test_programs.py', 'show/test_lr_find.py', 'save/test_resume.py', 'loop/test_no_sync.py',
         'save/test_checkpoint.py', 'runs/test_hostile_folders.py', 'runs/test_runs_in_ranks.py',
         'loop/test_memory.py', 'look/test_doctor.py', 'test_layers.py', 'test_notebooks.py']

def pytest_collection_modifyitems(items):
    def place(o): return next((i for i, name in enumerate(FIRST) if o.path.as_posix().endswith(f'/{name}')), len(FIRST))
    items.sort(key=place)

def pytest_terminal_summary(terminalreporter):
    "One line for what was left out on this machine; pytest lists what failed below it"
    texts = [o.longrepr[2].removeprefix('Skipped: ') for o in terminalreporter.stats.get('skipped', ())]
    counts = Counter(re.sub(r"could not import '(\S+)'", r'no \1', o.split(':')[0]) for o in texts)
    listed = ', '.join(f'{why} ({n})' for why, n in counts.most_common())
    if listed: terminalreporter.write_line(f'Left out {len(texts)} tests: {listed}', yellow=True)

@pytest.fixture(scope='module', autouse=True)
def _frozen():
    "A collection looks at what these tests make, not at a million objects of libraries and of other tests"
    gc.collect()
    gc.freeze()

@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)

@pytest.fixture
def cell(monkeypatch):
    "A stand-in for a kernel: the list of what stands in a cell's output, `cell.n_messages` of which made it so"
    import IPython, IPython.display
    class Cell(list): n_messages = 0
    cell = Cell()
    def display(bundle, raw=True, display_id=None, metadata=None):
        i = len(cell)
        cell.append(None)
        def update(bundle, raw=True, metadata=None):
            cell[i] = bundle
            cell.n_messages += 1
        update(bundle)
        return SimpleNamespace(update=update)
    monkeypatch.setattr(IPython, 'get_ipython', lambda: SimpleNamespace(kernel=True, execution_count=1))
    monkeypatch.setattr(IPython.display, 'display', display)
    return cell

@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    "A `TrainingInterrupted` that nobody expected is a failure of one test, and not the end of all of them"
    from trainer_nb.loop.fit import TrainingInterrupted
    try: return (yield)
    except TrainingInterrupted as e: raise AssertionError(f'TrainingInterrupted: {e}') from e
