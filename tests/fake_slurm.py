"""Stand-ins for the commands of Slurm, with the words of 22.05, which `install` puts into a folder, for FAKE_SLURM

Each job is a JSON file in the folder. A job begins at once, unless there is a file `busy`.
"""
import json, os, re, shlex, signal, subprocess, sys, time
from pathlib import Path

NAMES = 'sbatch', 'squeue', 'scancel', 'scontrol', 'srun'

def install(home):
    home.mkdir()
    for name in NAMES:
        path = home/name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} {name} "$@"\n')
        path.chmod(0o755)

def read(id): return json.loads((home/f'{id}.json').read_text())

def write(id, **new):
    old = read(id) if (home/f'{id}.json').exists() else {}
    beside = home/f'{id}.{os.getpid()}'
    beside.write_text(json.dumps({**old, **new}))
    os.replace(beside, home/f'{id}.json')

def sbatch(flag, script):
    assert flag == '--parsable' and not {o for o in os.environ if o[:6] == 'SLURM_'}
    lines = [o.removeprefix('#SBATCH ') for o in Path(script).read_text().splitlines() if o.startswith('#SBATCH ')]
    options = dict(shlex.split(o)[0].removeprefix('--').partition('=')[::2] for o in lines)
    if options.get('partition') == 'nowhere':
        sys.exit('sbatch: error: invalid partition specified: nowhere\n'
                 'sbatch: error: Batch job submission failed: Invalid partition name specified')
    id = 1 + len([*home.glob('*.json')])
    write(id, state='PENDING', script=script, options=options, pid=0, runs=0)
    subprocess.Popen([sys.executable, __file__, 'node', str(id)], start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(id)

def node(id):
    while (job := read(id))['state'] == 'PENDING':
        if (home/'busy').exists() or not home.exists():
            time.sleep(.02)
            continue
        out = re.sub('%(.)', lambda m: id if m[1] == 'j' else m[1], job['options']['output'])
        env = {**os.environ, 'SLURM_JOB_ID': id, 'SLURM_JOB_NODELIST': 'here', 'SLURM_CPUS_PER_TASK': '1'}
        with open(out, 'a') as f:
            process = subprocess.Popen(['bash', job['script']], env=env, stdout=f, stderr=f)
            write(id, state='RUNNING', pid=process.pid, runs=job['runs'] + 1)
            code = process.wait()
        if read(id)['state'] == 'RUNNING': write(id, state='FAILED' if code else 'COMPLETED')

def squeue(*args):
    id = next(o for o in args if o.startswith('--jobs=')).removeprefix('--jobs=')
    if not (home/f'{id}.json').exists(): sys.exit('slurm_load_jobs error: Invalid job id specified')
    state = read(id)['state']
    what = next(o for o in args if o.startswith('--format=')).removeprefix('--format=')
    reason = 'Resources' if state == 'PENDING' else 'None'
    print(what.replace('%T', state).replace('%r', reason).replace('%o', read(id).get('script', '')))

def scancel(*args):
    job = read(id := args[-1])
    if '--signal=USR1' in args: os.kill(job['pid'], signal.SIGUSR1)
    elif '--state=PENDING' in args and job['state'] == 'PENDING': write(id, state='CANCELLED')

def scontrol(verb, *args):
    if verb == 'requeue': write(args[0], state='PENDING')
    else: print('127.0.0.1')

def srun(*args):
    while args[0].startswith('-'): args = args[1:]
    os.environ['SLURM_NODEID'] = '0'
    os.execvp(args[0], args)


if __name__ == '__main__':
    name, *args = sys.argv[1:]
    home = Path(os.environ['FAKE_SLURM'])
    globals()[name](*args)
