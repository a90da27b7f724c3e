"""What an import costs: `python benchmarks/imports.py [rounds]`

Time and modules that `import trainer_nb.all` adds to `import torch`, each time in a new process, without the
first one, which compiles the files.
"""
import json, os, platform, subprocess, sys
from statistics import median, quantiles

CODE = '''if 1:
    import json, sys
    from time import perf_counter
    start = perf_counter()
    import torch
    with_torch, before = perf_counter(), set(sys.modules)
    import {}
    print(json.dumps([with_torch - start, perf_counter() - with_torch, len(set(sys.modules) - before),
                  torch.__version__]))'''

PACKAGES = 'trainer_nb.all', 'matplotlib.pyplot', 'ipywidgets'      # the others it loads where they are first used


def measure(package):
    "(seconds for torch, for the package, number of modules, torch's version) in a new process; None if not installed"
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
    version = seen['trainer_nb.all'][0][3]
    print(f'torch {version}, Python {platform.python_version()}, {platform.machine()}, {rounds} rounds; '
          f'torch itself {median(o[0] for res in seen.values() for o in res):.2f} s\n')
    print('| import, after torch | ms | quartiles | modules |\n| --- | ---: | ---: | ---: |')
    for package, res in seen.items():
        if not res: continue
        times = [1000*o[1] for o in res]
        low, _, high = quantiles(times, n=4)
        print(f'| `{package}` | {median(times):.0f} | {low:.0f}–{high:.0f} | {res[0][2]} |')
