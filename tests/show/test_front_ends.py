"The same fit in kernels, exports, terminals and pipes: the same numbers, and nothing that the place cannot show"
import fcntl, os, struct, subprocess, sys, termios
from functools import cache, partial

import nbformat, pytest

from common import digest
from fits import N_EPOCHS, environment, start, tests
from shown import check_interrupted, check_lines, check_markdown, check_notebook, check_outputs, check_shown
from trainer_nb.draw import Chart, Line, Panel
from trainer_nb.show import Notebook, Status

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

MANY = '''def above(k):
    def f(pred, targ): return (pred.softmax(1).amax(1) > .05*k).float().mean()
    f.__name__ = f'above_{k}'
    return f
learn = start(metrics=[accuracy, *map(above, range(7, 13))], train_dl=shuffled(5*23))
learn.fit(100)'''

def at_step_25(what):
    return f'LambdaHook(after_step=lambda learn: learn.training and learn.state.optimizer_step == 25 and {what})'

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
    check_outputs(fit, 'failed', 1, 'ZeroDivisionError')
    check_outputs(shown, 'failed', 1)

def lossy(fit, shown, digest):      # however many updates are lost: the next one shows all
    check_outputs(fit)
    cleared([], shown, digest)

def lossy_to_the_end(fit, n_lost, shown, digest):
    assert int(n_lost[0].data['text/plain'])
    cleared([], shown, digest)

def cleared(fit, shown, digest):
    assert not [o for o in fit if o.output_type in ('error', 'stream')]
    check_outputs(shown)
    check_digest(digest)

STOPS = ['learn.show()', 'learn.resume()', DIGEST]
CELLS = {       # name → check of its outputs, sources of its cells
    'fit': (lambda *cells: [*map(check_outputs, cells)], FIT, 'learn.history', 'learn.show()'),
    'thousands of steps': (partial(check_outputs, n_rows=20),
                           'learn = start(train_dl=shuffled(5*150))\nlearn.fit(20)'),
    'a hundred epochs': (partial(check_outputs, n_rows=100), MANY),
    'failed': (failed, fit('Fail()'), 'learn.show()'),
    'stopped': (partial(check_end, 'stopped'), fit(at_step_25('learn.stop()')), *STOPS),
    'interrupted': (interrupted, fit(at_step_25('signal.raise_signal(signal.SIGINT)')), *STOPS),
    'in a thread': (in_a_thread, THREAD, 'learn.show()', 'learn.stop()\nthread.join()', *STOPS),
    **{f'lossy {keep}': (lossy, fit(f'Lossy({keep}), Pace()'), 'learn.show()', DIGEST) for keep in (0, .3)},
    'lossy to the end': (lossy_to_the_end, fit('Lossy(0, to_the_end=True)'), 'learn.get_hook(Lossy).restore()',
                         'learn.show()', DIGEST),
    **{f'cleared {wait}': (cleared, fit(f'ClearOutput(wait={wait})'), 'learn.show()', DIGEST)
       for wait in (False, True)},
}

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
    outputs = iter([cell.outputs for cell in nb.cells[2:]])
    return {name: [next(outputs) for _ in sources] for name, (_, *sources) in CELLS.items()} | {'notebook': nb}

@pytest.mark.parametrize('name', CELLS)
def test_in_a_kernel(ran, name): CELLS[name][0](*ran[name])

def test_nothing_of_widgets_is_saved(ran): check_notebook(ran['notebook'])

# Tools

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

class Screen:
    "What a terminal shows; a line that is too long wraps"
    def __init__(self, columns): self.columns, self.lines, self.x, self.n_wraps = columns, [''], 0, 0

    def write(self, text):
        for c in text:
            if c == '\r': self.x = 0
            elif c == '\n': self.lines.append('')
            else:
                assert c.isprintable(), repr(c)
                if self.x == self.columns:
                    self.n_wraps, self.x = self.n_wraps + 1, 0
                    self.lines.append('')
                self.lines[-1] = self.lines[-1][:self.x].ljust(self.x) + c + self.lines[-1][self.x+1:]
                self.x += 1

def terminal(*args, columns, cwd):
    "Run `python args` in a pseudo-terminal of some width; returns its `Screen`, and all that was written"
    main, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack('HHHH', 40, columns, 0, 0))
    child = subprocess.Popen([sys.executable, *map(str, args)], cwd=cwd,
                             env={**environment(cwd/'env'), 'TERM': 'dumb'}, stdin=side, stdout=side, stderr=side,
                             start_new_session=True)
    os.close(side)
    data = b''
    try:
        while chunk := read(main): data += chunk
        assert child.wait(60) == 0, data.decode()
    finally:
        child.kill()
        child.wait()
        os.close(main)
    screen = Screen(columns)
    screen.write(data.decode())
    return screen, data.decode()

def read(fd):
    "What there is, b'' at the end"
    try: return os.read(fd, 2**16)
    except OSError: return b''

def test_screen():
    screen = Screen(4)
    screen.write('ab\rc\r\n1234\r5\r\n12345')
    assert screen.lines == ['cb', '5234', '1234', '5'] and screen.n_wraps == 1

def test_terminal(tmp_path, columns=60):
    screen, written = terminal(PROGRAM, columns=columns, cwd=tmp_path)
    assert '█' in written and not screen.n_wraps
    check_lines(screen.lines, expected(), columns)

@pytest.mark.soak
def test_ipython_in_a_terminal(tmp_path):
    screen, written = terminal('-m', 'IPython', '--quick', '--simple-prompt', '--no-banner', '-c',
                               f'from fits import *\nlearn = start(Pace())\nlearn.fit(N_EPOCHS);\n{DIGEST}',
                               columns=100, cwd=tmp_path)
    assert '█' in written and not screen.n_wraps
    check_lines(screen.lines, expected(), 100)

def test_pipe(tmp_path):
    out, err = tool(PROGRAM, cwd=tmp_path)
    assert is_clean(out) and not err
    check_lines(out.splitlines(), expected())

def test_an_area_that_begins_without_a_chart_shows_its_table_in_the_end(monkeypatch):
    "As the view of a run does where there are no widgets"
    class Part:
        def __init__(self, bundle, metadata=None): self.update(bundle)
        def update(self, bundle, **kwargs): self.text = bundle['text/plain']
    monkeypatch.setattr('trainer_nb.show.display.show_bundle', Part)
    chart = Chart(300, 120, [Panel(40, 20, 250, 60, [Line([0., 1.], [3., 1.], '#0072B2', 'loss')], (0, 1), (0, 4), '')])
    area = Notebook()
    area.draw(Status('starting'), chart, '')
    area.draw(Status('starting'))
    area.end(Status('done'), chart, '<table></table>', 'epoch  loss')
    assert [handle.text for handle, _ in area.outputs] == ['done', 'plot', 'epoch  loss']
