"""How soon a run answers a click: `python benchmarks/clicks.py [clicks]`

In JupyterLab and Notebook 7 in headless Chromium, with comms on a subshell and without: milliseconds from the click on
a button of a run's view until the page shows that the click is noted, and until it shows its effect on the training.
The run has batches of 20 ms, and another cell computes meanwhile where a subshell lets clicks through. The target is
300 ms.
"""
import platform, sys
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]/'tests'))
from browser.lab import Jupyter, missing    # noqa: E402
from browser.test_runs import COMPUTE, START      # noqa: E402

# button → what the page shows beside the buttons once the training has done it
ANSWERS = {'Pause': 'pause: paused', 'Resume': 'unpause: resumes', 'lr × 2': 'scale_lr: lr', 'lr ÷ 2': 'scale_lr: lr',
           'Checkpoint now': 'checkpoint: saved', 'Stop after batch': 'stops after this batch'}
# the ms after a click until the text beside the buttons changes, and until it shows the answer
TIMES = '''([label, answer]) => new Promise((done, fail) => {
    const area = nb.area(0), is_end = label == "Stop after batch"
    const button = [...area.querySelectorAll("button")].filter(o => o.innerText.trim() == label).at(-1)
    const row = button.parentElement, text = () => row.innerText.replace(/^(Pause|Resume)/, "")
    const before = text()
    let start = 0, noted = 0
    const look = () => {
        const now = performance.now() - start
        if (!noted && text() != before) noted = now
        const is_done = noted && text().includes(answer) || is_end && area.innerText.includes("stopped")
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


def clicked(page, label):  # (ms until noted, ms until done)
    page.until('label => [...nb.area(0).querySelectorAll("button")].some(o => o.innerText.trim() == label)', label)
    return page.js(TIMES, [label, ANSWERS[label]])

def measured(page, n, computes):
    "dict: button → list of (ms until noted, ms until done)"
    enough = page.jupyter.root/'enough'
    enough.unlink(missing_ok=True)
    page.cells(START, COMPUTE, 'run.is_over or run.stop()')
    page.run()
    page.until('() => nb.area(0)?.innerText.includes("it/s")')      # it trains
    if computes: page.start(1)
    found = {label: [] for label in ANSWERS}
    try:
        for i in range(n):
            for label in ANSWERS:
                if label == 'Stop after batch' and i < n - 1: continue
                page.page.wait_for_timeout(97 + 61*(i % 7))     # at other phases of the two loops that look
                found[label].append(clicked(page, label))
    finally:
        enough.touch()
        page.wait()
        page.run(2)
    return found


def main(n):
    print(f'torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {n} clicks on each\n')
    print('| app | comms | button | noted, median ms | worst | done, median ms | worst |\n'
          '| --- | --- | --- | ---: | ---: | ---: | ---: |')
    with Jupyter() as on, Jupyter({'apputils-extension/kernels-settings': {'commsOverSubshells': 'disabled'}},
                                  browser=on.browser) as off:
        for jupyter, comms in (on, 'subshell'), (off, 'main shell'):
            for app, name in ('lab', 'JupyterLab'), ('notebook', 'Notebook 7'):
                found = measured(jupyter.page(app), n, jupyter is on)
                for label, times in found.items():
                    noted, done = zip(*times)
                    print(f'| {name} | {comms} | {label} | {median(noted):.0f} | {max(noted):.0f} '
                          f'| {median(done):.0f} | {max(done):.0f} |', flush=True)


if __name__ == '__main__':
    if why := missing(): sys.exit(why)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
