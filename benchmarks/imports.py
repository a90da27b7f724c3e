"""What an import costs: `python benchmarks/imports.py [rounds]`

CPU time and modules that `import trainer_nb.all` adds to `import torch`, each time in a new process, without the
first one, which compiles the files. An import may be in the way when the garbage collector walks all that torch has
made, 170,000 objects. When that comes depends on what was imported before, so it has a column of its own.
"""
import json, os, platform, subprocess, sys
from statistics import median, quantiles

CODE = '''if 1:
    import gc, json, sys
    from time import process_time
    start = process_time()
    import torch
    with_torch, before, walks = process_time(), set(sys.modules), []
    gc.callbacks.append(lambda phase, info: walks.append(process_time()))
    import {}
    took = process_time() - with_torch
    gc.callbacks.clear()
    walked = sum(walks[1::2]) - sum(walks[::2])
    print(json.dumps([with_torch - start, took - walked, walked, len(set(sys.modules) - before), torch.__version__]))'''

PACKAGES = 'trainer_nb.all', 'matplotlib.pyplot', 'ipywidgets'      # the others it loads where they are first used


def measure(package):
    """(seconds for torch, the package, the collector; number of modules; torch's version) in a new process

    None if it is not installed.
    """
    # a user's Python keeps what it has compiled
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONDONTWRITEBYTECODE'}
    res = subprocess.run([sys.executable, '-c', CODE.format(package)], capture_output=True, text=True, env=env)
    return json.loads(res.stdout) if not res.returncode else None


if __name__ == '__main__':
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    seen = {package: [] for package in PACKAGES}
    for i in range(rounds + 1):
        for package, res in seen.items():
            if (o := measure(package)) is not None and i: res.append(o)
    version = seen['trainer_nb.all'][0][4]
    print(f'torch {version}, Python {platform.python_version()}, {platform.machine()}, {rounds} rounds; '
          f'torch itself {median(o[0] for res in seen.values() for o in res):.2f} s\n')
    print('| import, after torch | ms | quartiles | collector | modules |\n| --- | ---: | ---: | ---: | ---: |')
    for package, res in seen.items():
        if not res: continue
        times = [1000*o[1] for o in res]
        low, _, high = quantiles(times, n=4)
        walks = 1000*median(o[2] for o in res)
        print(f'| `{package}` | {median(times):.0f} | {low:.0f}–{high:.0f} | {walks:.0f} | {res[0][3]} |')
