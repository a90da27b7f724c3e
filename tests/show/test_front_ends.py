"The same fit in kernels, exports, terminals and pipes: the same numbers, and nothing that the place cannot show"
import re, subprocess, sys
from functools import cache

import nbformat, pexpect, pytest

from common import digest
from fits import N_EPOCHS, environment, start, tests
from shown import check_interrupted, check_lines, check_markdown, check_notebook, check_outputs, check_shown

FIT = 'learn = start(step_s=.005)\nlearn.fit(N_EPOCHS)'
DIGEST = 'print(digest(learn)[:16])'
PROGRAM = tests/'fits.py'       # both

@cache
def expected():
    "The digest of a fit that shows nothing"
    learn = start(display=False)
    learn.fit(N_EPOCHS)
    return digest(learn)[:16]

def notebook(*sources):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(o) for o in ('from fits import *', *sources)])

def tool(*args, cwd):
    "Run `python args`; returns what it wrote to stdout and to stderr"
    res = subprocess.run([sys.executable, *map(str, args)], cwd=cwd, env=environment(cwd/'env'), capture_output=True,
                         encoding='utf-8', timeout=300)
    assert not res.returncode, res.stderr
    return res.stdout, res.stderr

def is_clean(text): return '\r' not in text and '\x1b' not in text


# A kernel, driven by nbclient

THREAD = '''learn = start(Wait(), step_s=.01)
thread = threading.Thread(target=learn.fit, args=[N_EPOCHS])
thread.start()
while not len(learn.history): time.sleep(.01)'''

def fit(hook=''): return f'learn = start({hook})\nlearn.fit(N_EPOCHS)'

INTERRUPT = ('LambdaHook(after_step=lambda learn: learn.training and learn.state.optimizer_step == 25 '
             'and signal.raise_signal(signal.SIGINT))')

def check_digest(outputs):
    assert ''.join(o.text for o in outputs).strip() == expected()      # a kernel may send the end of a line apart

def check_end(end, first, shown, nothing, digest, error=None, n_rows=1):
    "The fit ended early, was shown again, and was resumed to the same numbers"
    check_outputs(first, end, n_rows, error)
    check_outputs(shown, end, n_rows)
    check_outputs(nothing, n_rows=None)
    check_digest(digest)

def interrupted(fit, *cells):
    check_end('interrupted', fit, *cells, 'TrainingInterrupted')
    check_interrupted('\n'.join(fit[-1].traceback))

def in_a_thread(first, live, nothing, *rest):
    check_shown(live)
    assert not nothing
    check_end('stopped', first, *rest, n_rows=None)

def failed(fit, shown):
    for outputs, *error in (fit, 'ZeroDivisionError'), (shown,): check_outputs(outputs, 'failed', 1, *error)

def shown_again(fit, *cells):
    "However many updates were lost, or outputs cleared, what comes next shows all"
    *lost, shown, digest = cells
    assert not [o for o in fit if o.output_type in ('error', 'stream')]
    assert all(int(o[0].data['text/plain']) for o in lost)
    check_outputs(shown)
    check_digest(digest)

STOPS = ['learn.show()', 'learn.resume()', DIGEST]
CELLS = {       # name → check of its outputs, sources of its cells
    'fit': (lambda *cells: [*map(check_outputs, cells)], FIT, 'learn.history', 'learn.show()'),
    'failed': (failed, fit('Fail()'), 'learn.show()'),
    'interrupted': (interrupted, fit(INTERRUPT), *STOPS),
    'in a thread': (in_a_thread, THREAD, 'learn.show()', 'learn.stop()\nthread.join()', *STOPS),
    'lossy': (shown_again, fit('Lossy()'), 'learn.get_hook(Lossy).restore()', 'learn.show()', DIGEST),
    'cleared': (shown_again, fit('ClearOutput(wait=False)'), 'learn.show()', DIGEST)}

@pytest.fixture(scope='module')
def ran(tmp_path_factory):
    "Name → outputs of its cells, and the notebook; all in one kernel"
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient
    nb = notebook('import signal, threading', *(o for _, *sources in CELLS.values() for o in sources))
    specs = KernelSpecManager(kernel_dirs=[f'{sys.prefix}/share/jupyter/kernels'])
    manager = AsyncKernelManager(kernel_spec_manager=specs)
    # a kernel may send the two parts of a `print` one by one
    NotebookClient(nb, km=manager, timeout=120, allow_errors=True, coalesce_streams=True,
                   extra_arguments=['--log-level=ERROR']).execute(env=environment(tmp_path_factory.mktemp('kernel')))
    check_notebook(nb)
    outputs = iter([cell.outputs for cell in nb.cells[2:]])
    return {name: [next(outputs) for _ in sources] for name, (_, *sources) in CELLS.items()}

@pytest.mark.parametrize('name', CELLS)
def test_in_a_kernel(ran, name): CELLS[name][0](*ran[name])

@pytest.mark.soak
def test_papermill_and_markdown(tmp_path):
    nbformat.write(notebook(FIT, DIGEST), tmp_path/'fit.ipynb')
    log = ''.join(tool('-m', 'papermill', 'fit.ipynb', 'out.ipynb', '-k', 'python3', '--log-output',
                       '--no-progress-bar', cwd=tmp_path))
    nb = nbformat.read(tmp_path/'out.ipynb', 4)
    check_outputs(nb.cells[-2].outputs)
    check_notebook(nb)
    check_digest(nb.cells[-1].outputs)
    assert is_clean(log) and expected() in log and len(log) < 20_000, log
    tool('-m', 'nbconvert', '--to', 'markdown', 'out.ipynb', cwd=tmp_path)
    check_markdown((tmp_path/'out.md').read_text(encoding='utf-8'))


# Terminals and pipes

def test_terminal(tmp_path, columns=60):
    "Each line is written over the bar, and none is too long"
    child = pexpect.spawn(sys.executable, [str(PROGRAM)], cwd=tmp_path, dimensions=(40, columns), timeout=300,
                          env={**environment(tmp_path/'env'), 'TERM': 'dumb'}, encoding='utf-8')
    child.expect(pexpect.EOF)
    child.close()
    written = child.before
    assert child.exitstatus == 0, written
    assert '█' in written and max(map(len, re.split(r'[\r\n]', written))) <= columns and '\x1b' not in written
    lines = [[o for o in line.split('\r') if o.strip()][-1:] for line in written.split('\n')]
    check_lines([o for line in lines for o in line], expected(), columns)

def test_pipe(tmp_path):
    out, err = tool(PROGRAM, cwd=tmp_path)
    assert is_clean(out) and not err
    check_lines(out.splitlines(), expected())
