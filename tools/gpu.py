"""Run everything that needs a CUDA device: `make gpu`

It runs tests/test_gpu.py and then benchmarks/gpu.py, in eight minutes at most. If a test hangs or ends the process,
it counts as failed, and the others run in a new process. The results go to benchmarks/results/gpu.md. Without a
device it says how many tests there are; with TRAINER_NB_GPU_DRY=1 it runs them on the CPU and stores nothing.
"""
import os, platform, subprocess, sys, tempfile, time
from importlib.util import find_spec
from pathlib import Path

import torch

import outcomes

ROOT = Path(__file__).parents[1]
TESTS = 'tests/test_gpu.py'
DRY = os.environ.get('TRAINER_NB_GPU_DRY') == '1'
LIMIT_S, TESTS_S, HANGS_S = 480, 270, 100       # for everything; for the tests; for one test

def environment(folder):
    here = str(Path(outcomes.__file__).parent)
    path = os.pathsep.join([here, str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])
    return {**os.environ, 'PYTHONPATH': path, 'TEST_OUTCOMES': str(folder/'log'), 'PYTHONUNBUFFERED': '1',
            'CUBLAS_WORKSPACE_CONFIG': ':4096:8'}

def collect(
    env,  # dict
):        # list of the tests' ids
    command = [sys.executable, '-m', 'pytest', '-q', '-m', 'gpu', '--collect-only', TESTS]
    out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    found = [o for o in out.stdout.splitlines() if o.startswith(TESTS + '::')]
    if not found: sys.exit(out.stdout + out.stderr)
    return found

def run_tests(
    ids,   # list of str
    env,   # dict
    ends,  # `time.monotonic()` at which to stop
):         # dict: id → {'outcome', 'time_s', 'why'}
    log, done = Path(env['TEST_OUTCOMES']), {}
    command = [sys.executable, '-m', 'pytest', '-q', '-m', 'gpu', '-p', 'outcomes', '--tb=short', '-rfE']
    while (rest := [o for o in ids if o not in done]) and time.monotonic() < ends:
        log.unlink(missing_ok=True)
        child = subprocess.Popen([*command, *rest], cwd=ROOT, env=env)
        moved, size, why = time.monotonic(), -1, ''
        while child.poll() is None:
            time.sleep(.2)
            now = log.stat().st_size if log.exists() else 0
            if now != size: moved, size = time.monotonic(), now
            if time.monotonic() - moved > HANGS_S: why = f'took more than {HANGS_S} s'
            if time.monotonic() > ends: why = 'the time was over'
            if why: child.kill()
        seen = outcomes.newest(log)
        for o in seen.values():
            ended = f'ended the process with code {child.returncode}'
            if o['outcome'] == 'running': o.update(outcome='failed', why=why or ended)
        if not seen: break      # pytest itself does not start
        done |= seen
    return {**{o: {'outcome': 'not run', 'why': ''} for o in ids}, **done}

def table(found):  # str
    rows = ['| test | | s | |', '| --- | --- | ---: | --- |']
    for name, o in found.items():
        short = name.split('::')[1].removeprefix('test_').replace('|', '/')
        why = outcomes.cell(o.get('why', '')) if o['outcome'] != 'passed' else ''
        rows.append(f"| {short} | {o['outcome']} | {o.get('time_s', 0):.1f} | {why} |")
    return '\n'.join(rows)

def main():
    start, has_gpu = time.monotonic(), torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        env = environment(Path(folder))
        ids = collect(env)
        if not has_gpu and not DRY:
            print(f'There is no CUDA device here (torch {torch.__version__}): {len(ids)} tests and benchmarks/gpu.py '
                  'would run. TRAINER_NB_GPU_DRY=1 make gpu runs them on the CPU, to check the tests themselves.')
            return 0
        found = run_tests(ids, env, start + TESTS_S)
    n = {kind: sum(o['outcome'] == kind for o in found.values()) for kind in ('passed', 'failed', 'skipped', 'not run')}
    summary = ', '.join(f'{k} {name}' for name, k in n.items() if k)
    left = LIMIT_S - (time.monotonic() - start) - 10
    command = [sys.executable, 'benchmarks/gpu.py', *(['--cpu'] if DRY else []), f'--seconds={left:.0f}']
    try: figures = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=left).stdout
    except subprocess.TimeoutExpired as e: figures = (e.stdout or b'').decode() + '\n\nThe time was over here.\n'
    where = 'CPU: the figures say nothing'
    if has_gpu and not DRY: where = f'{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}'
    if find_spec('accelerate') is None: summary += '; without accelerate, so several processes are not measured'
    page = (f'# On a GPU\n\n{where}; torch {torch.__version__}, Python {platform.python_version()}.\n\n'
            f'## Tests: {summary}\n\n{table(found)}\n\n## Figures\n\n{figures}')
    print(page)
    if has_gpu and not DRY: (ROOT/'benchmarks'/'results'/'gpu.md').write_text(page)
    print(f'{summary}, in {time.monotonic() - start:.0f} s')
    return int(bool(n['failed'] or n['not run']))


if __name__ == '__main__': sys.exit(main())
