"""The outcome of each test, written as it ends: a pytest plugin, `-p outcomes` with $TEST_OUTCOMES naming a file

Its notes are whole even where a test ends the process or hangs. `newest` reads them.
"""
import json, os, re


def _note(**what):
    if 'PYTEST_XDIST_WORKER' in os.environ: return      # the process that sends out the tests hears of each
    with open(os.environ['TEST_OUTCOMES'], 'a', encoding='utf-8') as f: f.write(json.dumps(what) + '\n')

def pytest_runtest_logstart(nodeid): _note(id=nodeid, outcome='running')

def pytest_runtest_logreport(report):
    if report.when != 'call' and report.outcome == 'passed': return
    text = report.longrepr or ''
    crash = getattr(text, 'reprcrash', None)
    why = str(text[2] if isinstance(text, tuple) else getattr(crash, 'message', text))
    _note(id=report.nodeid, outcome=report.outcome, time_s=report.duration, why=why[:200])

def pytest_runtest_teardown(item):
    import pytest, torch
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()): return
    try: torch.cuda.synchronize()
    except RuntimeError as e: pytest.exit(f'the device no longer answers: {e}', 3)     # all later tests would fail

def newest(
    log,  # `Path`
):        # dict: id → {'outcome', 'time_s', 'why'}; a failure in a test's teardown counts
    "Return the newest note of each test"
    seen = {}
    for o in map(json.loads, log.read_text(encoding='utf-8').splitlines() if log.exists() else []):
        if seen.get(o['id'], {}).get('outcome') != 'failed' or o['outcome'] == 'failed': seen[o['id']] = o
    return seen

def cell(
    text,  # str
):         # str, for a Markdown table
    return re.sub(r'\s+', ' ', text).replace('|', '/')
