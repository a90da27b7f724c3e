import sys
from pathlib import Path

import pytest, torch

sys.path.insert(0, str(Path(__file__).parent))      # for common.py, whatever pytest's import mode is
torch.set_num_threads(1)                            # sums in one order, and no fight for the cores


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    "A `TrainingInterrupted` that nobody expected is a failure of one test, and not the end of all of them"
    from trainer_nb.run import TrainingInterrupted
    try: return (yield)
    except TrainingInterrupted as e: raise AssertionError(f'TrainingInterrupted: {e}') from e
