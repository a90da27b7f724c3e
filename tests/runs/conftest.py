"Fixtures of all tests of runs"
import os

import pytest

from trainer_nb.runs import engine
from trainer_nb.runs.folder import RunFolder

@pytest.fixture(autouse=True)
def _ends(tmp_path):
    "No process outlives its test"
    yield
    for path in tmp_path.rglob('status.json'):
        data = RunFolder(path.parent).read('status.json')
        if 'started' not in data or data['pid'] == os.getpid(): continue
        if (process := engine.process_of(data)) is not None: process.kill()

@pytest.fixture(scope='session')
def _servers():
    with engine.warm_starts():
        servers, engine.warm[:] = [*engine.warm], []
        yield servers       # none where processes cannot be forked
        engine.warm[:] = servers

@pytest.fixture(scope='module')
def warm(_servers):
    "Runs start in a moment, as those of a sweep: most of what is tested does not depend on how they start"
    engine.warm[:] = _servers
    yield
    engine.warm.clear()
