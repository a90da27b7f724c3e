"""What an import costs: `python benchmarks/imports.py [rounds]`

CPU time and modules that `import trainer_nb.all` adds to `import torch`, each time in a new process, without the
first one, which compiles the files; beside it, two packages that it loads where they are first used. The garbage
collector is off: when it walks all that torch has made depends on what was imported before.
"""
import json, os, subprocess, sys
from statistics import median

import plain

CODE = '''if 1:
    import gc, json, sys
    from time import process_time
    gc.disable()
    import torch
    start, before = process_time(), set(sys.modules)
    import {}
    print(json.dumps([process_time() - start, len(set(sys.modules) - before)]))'''


def measure(package):
    "(seconds, number of modules) in a new process, whose Python keeps what it compiled"
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONDONTWRITEBYTECODE'}
    return json.loads(subprocess.check_output([sys.executable, '-c', CODE.format(package)], env=env))


if __name__ == '__main__':
    rounds = plain.argument(10)
    plain.heading(f'{rounds} rounds')
    print('| import, after torch | ms | modules |\n| --- | ---: | ---: |')
    for package in 'trainer_nb.all', 'matplotlib.pyplot', 'ipywidgets':
        _, *seen = [measure(package) for _ in range(rounds + 1)]
        print(f'| `{package}` | {1000*median(o[0] for o in seen):.0f} | {seen[0][1]} |', flush=True)
