"""How soon a click is answered: `python benchmarks/clicks.py [clicks]`

In JupyterLab and Notebook 7 in headless Chromium: milliseconds from the click on a button until the page shows that it
is noted, and until it shows its effect on the training. The buttons are those of a run's view, beside a quiet kernel
and beside a cell that computes, and of `Controls` in a fit, whose cell computes. Batches take 20 ms. Last, a run's
buttons where the front end knows no subshells. The target is 300 ms.
"""
import sys
from pathlib import Path
from statistics import median

import plain

sys.path.insert(0, str(Path(__file__).resolve().parents[1]/'tests'))
from browser.lab import Jupyter, missing    # noqa: E402
from browser.test_runs import COMPUTE, START      # noqa: E402

START_RUN = "run = learn.start(10**4, folder=Path(tempfile.mkdtemp())/'a')"
FIT = START.replace(START_RUN, 'learn.fit(10**4)').replace(
    'hooks=[Slow()]', "hooks=[Slow(), Controls(), Checkpoint(Path(tempfile.mkdtemp())/'c')]")
# button → what the page shows beside the buttons, or on them, once the training has done it
DONE = {'Pause': 'paused at batch', 'Resume': 'resumed at batch', 'lr × 2': 'lr × 2 → ', 'lr ÷ 2': 'lr ÷ 2 → ',
        'Checkpoint now': 'saved|saves', 'Stop after batch': 'stopped'}
VIEWS = {'a run': (START, 'run.is_over or run.stop()'), 'a fit': (FIT, '')}
# the ms after a click until the buttons or the text beside them change, and until the answer is there
TIMES = '''([label, answer]) => new Promise((done, fail) => {
    const area = nb.area(0), is_end = label.startsWith("Stop")
    const found = o => o.offsetHeight && o.innerText.trim() == label
    const button = [...area.querySelectorAll("button")].filter(found)[0], row = button.parentElement
    const state = () => row.innerText + [...row.querySelectorAll("button")].map(o => o.disabled)
    const before = state()
    let start = 0, noted = 0
    const look = () => {
        const now = performance.now() - start
        if (!noted && state() != before) noted = now
        const is_answered = answer.split("|").some(o => row.innerText.includes(o))
        const is_done = noted && is_answered || is_end && area.innerText.includes("stopped")
        if (!is_done) return
        stop()
        done([noted || now, now])
    }
    const watch = new MutationObserver(look), timer = setTimeout(() => {
        stop()
        fail(new Error(label + ": no answer in 20 s: " + area.innerText))
    }, 20000)
    const stop = () => { watch.disconnect(); clearTimeout(timer) }
    watch.observe(area, {childList: true, subtree: true, characterData: true, attributes: true})
    start = performance.now()
    button.click()
})'''
READY = '''label => [...nb.area(0).querySelectorAll("button")].some(
    o => o.offsetHeight && !o.disabled && o.innerText.trim() == label)'''


def clicked(page, label, answer):  # (ms until noted, ms until done)
    page.until(READY, label)
    return page.js(TIMES, [label, answer])

def measured(page, view, n, is_busy):
    "dict: button → list of (ms until noted, ms until done)"
    source, end = VIEWS[view]
    enough = page.jupyter.root/'enough'
    enough.unlink(missing_ok=True)
    page.cells(source, COMPUTE, end)
    page.start()
    page.until(READY, 'Pause')
    if view != 'a fit': page.wait()
    page.until('() => nb.area(0)?.innerText.includes("it/s")')      # it trains
    if is_busy and view != 'a fit': page.start(1)
    found = {label: [] for label in DONE}
    try:
        for i in range(n):
            for label, answer in DONE.items():
                if label.startswith('Stop') and i < n - 1: continue
                page.page.wait_for_timeout(97 + 61*(i % 7))     # at other phases of the two loops that look
                found[label].append(clicked(page, label, answer))
    finally:
        enough.touch()
        page.wait()
        page.run(2)
    return found


def main(n):
    plain.heading(f'{n} clicks on each')
    print('| app | buttons of | kernel | button | noted, median ms | worst | done, median ms | worst |\n'
          '| --- | --- | --- | --- | ---: | ---: | ---: | ---: |')
    kinds = ('a run', False), ('a run', True), ('a fit', True)
    with Jupyter() as on, Jupyter({'apputils-extension/kernels-settings': {'commsOverSubshells': 'disabled'}},
                                  browser=on.browser) as off:
        for jupyter, shown in (on, kinds), (off, kinds[:1]):
            for app, name in ('lab', 'JupyterLab'), ('notebook', 'Notebook 7'):
                for view, is_busy in shown:
                    kernel = 'busy' if is_busy else 'quiet' if jupyter is on else 'quiet, no subshells'
                    for label, times in measured(jupyter.page(app), view, n, is_busy).items():
                        noted, done = zip(*times)
                        print(f'| {name} | {view} | {kernel} | {label} | {median(noted):.0f} | {max(noted):.0f} '
                              f'| {median(done):.0f} | {max(done):.0f} |', flush=True)


if __name__ == '__main__':
    if why := missing(): sys.exit(why)
    main(plain.argument(4))
