"""Run all tests on the versions of torch and Python that are supported: `make test-versions`

`oldest`, `pinned`, `newest` and `one-cpu` (the newest torch, on one CPU) each get an environment of their own below
.venv-versions, one after the other; it is removed when its tests are done, as most builds of torch fill 5 GB. The
outcomes go to benchmarks/results/versions.md.

    python tools/versions.py [oldest] [pinned] [newest] [one-cpu] [-- what pytest takes]

$PYTHONS names the interpreters, such as "python3.12 /opt/python3.13/bin/python"; without it they are looked up.
"""
import argparse, os, re, shlex, shutil, subprocess, sys, tempfile
from configparser import ConfigParser
from datetime import date
from pathlib import Path

import outcomes

ROOT = Path(__file__).parents[1]
PAGE = ROOT/'benchmarks/results/versions.md'
ROWS = {'oldest': '3.11', 'pinned': '3.12', 'newest': '3.13', 'one-cpu': '3.13'}       # torch → Python
HEAD = f"""## Versions

`make test-versions` runs the tests on the oldest torch that is supported, the one that development runs on, and the
newest, each with another Python; and the newest where only one CPU may be used.

| | torch | Python | passed | failed | skipped | date | |
| --- | --- | --- | ---: | ---: | ---: | --- | --- |
"""


def wanted(
    name,  # one of `ROWS`
):         # what pip takes: the bound in settings.ini, the pin in constraints.txt, or any
    ini = ConfigParser(delimiters=['='])
    ini.read(ROOT/'settings.ini', encoding='utf-8')
    bound = re.search(r'torch>=(\S+)', ini['DEFAULT']['requirements'])[1]
    pin = re.search(r'^torch==(\S+)', (ROOT/'constraints.txt').read_text(encoding='utf-8'), flags=re.M)[1]
    return {'oldest': f'torch=={bound}', 'pinned': f'torch=={pin}'}.get(name, 'torch')

def version(
    python,  # command
):           # '3.12'; None if it does not run
    command = [python, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])']
    try: out = subprocess.run(command, capture_output=True, text=True)
    except OSError: return None
    return out.stdout.strip() if not out.returncode else None

def interpreter(
    want,  # '3.12'
):         # command
    names = shlex.split(os.environ.get('PYTHONS', '')) or [f'python{want}', 'python3', sys.executable]
    found = {o: version(o) for o in names}
    if want in found.values(): return next(o for o, v in found.items() if v == want)
    there = ', '.join(f'{o} ({v or "does not run"})' for o, v in found.items())
    sys.exit(f'No Python {want} among {there}: name one, make test-versions PYTHONS="python3.11 python3.12 python3.13"')

def install(
    python,  # command
    torch,   # what pip takes
    folder,  # of the environment, made here
):           # its interpreter
    subprocess.run([python, '-m', 'venv', folder], check=True)
    own = folder/'bin/python'
    pip = [own, '-m', 'pip', 'install', '-q', '--disable-pip-version-check']
    subprocess.run([*pip, '-e', f'{ROOT}[dev]', torch], check=True)
    return own

def use_one_cpu(): os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

def run(
    python,      # interpreter
    args,        # list of what pytest takes
    limit=None,  # function that limits the process of the tests
):               # (dict: id → {'outcome', ...}, (torch's version, Python's))
    with tempfile.TemporaryDirectory() as tmp:
        path = os.pathsep.join([str(ROOT), str(Path(outcomes.__file__).parent)])
        env = {**os.environ, 'PYTHONPATH': path, 'TEST_OUTCOMES': f'{tmp}/log', 'PYTHONNOUSERSITE': '1'}
        subprocess.run([python, '-m', 'pytest', '-q', '-p', 'outcomes', *args], cwd=ROOT, env=env, preexec_fn=limit)
        code = 'import platform, torch; print(torch.__version__, platform.python_version())'
        out = subprocess.run([python, '-c', code], env=env, check=True, capture_output=True, text=True)
        return outcomes.newest(Path(tmp)/'log'), out.stdout.split()

def row(
    name,      # 'oldest', ...
    found,     # dict: id → {'outcome', ...}
    versions,  # (torch's, Python's)
    args,      # list of what pytest got
):             # str
    kinds = [o['outcome'] for o in found.values()]
    n = [kinds.count(o) for o in ('passed', 'failed', 'skipped')]
    notes = [f'`{shlex.join(args)}`'] if args else []
    if unfinished := len(kinds) - sum(n): notes += [f'{unfinished} did not finish']
    notes += [outcomes.cell(f"{o.split('/')[-1]}: {v['why']}") for o, v in found.items() if v['outcome'] == 'failed']
    return f"| {name} | {' | '.join(map(str, [*versions, *n, date.today(), '<br>'.join(notes)]))} |"

def store(
    name,  # 'oldest', ...
    text,  # its row, which takes the place of the one there
):
    old = PAGE.read_text(encoding='utf-8').splitlines() if PAGE.exists() else []
    rows = {o: line for o in ROWS for line in old if line.startswith(f'| {o} |')} | {name: text}
    PAGE.write_text(HEAD + ''.join(f'{rows[o]}\n' for o in ROWS if o in rows), encoding='utf-8')

def main():
    argv, args = sys.argv[1:], []
    if '--' in argv: argv, args = argv[:(i := argv.index('--'))], argv[i + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='name', help=', '.join(ROWS))
    names = parser.parse_args(argv).names or list(ROWS)
    if unknown := set(names) - set(ROWS): parser.error(f'no row {", ".join(sorted(unknown))}: there are {list(ROWS)}')
    pythons, failed = {o: interpreter(ROWS[o]) for o in names}, 0
    for name in names:
        folder = ROOT/'.venv-versions'/name
        shutil.rmtree(folder, ignore_errors=True)
        limit = use_one_cpu if name == 'one-cpu' else None
        try: found, versions = run(install(pythons[name], wanted(name), folder), args, limit)
        finally: shutil.rmtree(folder, ignore_errors=True)
        text = row(name, found, versions, args)
        print(text, flush=True)
        store(name, text)
        failed += any(o['outcome'] not in ('passed', 'skipped') for o in found.values())
    return failed


if __name__ == '__main__': sys.exit(main())
