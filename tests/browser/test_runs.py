"A run in JupyterLab and Notebook 7: live while other cells compute, steered by buttons, compared, there after a reload"
from browser.conftest import lab_first
from browser.lab import PICTURE
from shown import check_readable

START = '''import tempfile, time
from pathlib import Path
import torch, torch.nn.functional as F
from trainer_nb.all import *
class Slow(Hook):
    def after_step(self, learn): time.sleep(.02)
x = torch.randn(640, 4)
learn = Learner(torch.nn.Linear(4, 1), (x, x[:, :1]), (x, x[:, :1]), loss_fn=F.mse_loss, hooks=[Slow()])
run = learn.start(10**4, folder=Path(tempfile.mkdtemp())/'a')'''
COMPUTE = 'while not Path("enough").exists(): sum(range(10**5))\nprint("computed")'
COMPARE = "learn.start(2, folder=run.folder.path.parent/'b').wait()", 'compare(run.folder.path.parent)'
END = 'run.wait(30)\nprint(run.status)'

@lab_first
def test_run(page):
    enough = page.jupyter.root/'enough'
    enough.unlink(missing_ok=True)
    page.cells(START, COMPUTE, END, 'run.show() if run.is_over else run.stop()', *COMPARE)
    page.run()
    try:
        for k in 4, 5: page.run(k)
        page.until(PICTURE, 5)
        assert '1 of them live' in page.text(5)
        page.start(1)
        for k in 0, 5: page.changes(k)      # while the next cell computes
        page.until('() => /<img/.test(nb.cell(0).model.outputs.toJSON()[1].data["text/html"])')
        assert not page.js('() => nb.parts(0)[1].clientHeight')     # a page without the kernel shows it
        page.press('Pause')
        page.until('() => nb.area(0).innerText.includes("paused")')
        page.press('Resume')
        page.changes()
        assert 'computed' not in page.text(1)       # the cell was busy meanwhile
        enough.touch()
        page.wait()
        page.save()
        page.open()                     # the page is loaded again, and nothing is clicked
        page.changes()
        page.press('Stop after batch')
        page.run(2)
        assert page.text(2).strip() == 'stopped'
    finally:
        enough.touch()
        page.run(3)
    page.until('() => nb.area(0).innerText.includes("stopped")')    # the widget; what was loaded again takes no updates
    kinds = [o.get('data', {}).keys() for o in page.outputs(3)]     # this can be read without a kernel
    assert any('image/png' in o for o in kinds)
    assert not any('application/vnd.jupyter.widget-view+json' in o for o in kinds)
    page.save()     # of the first cell it knows no more than before it was loaded again
    page.js('() => nb.kernel().restart()')
    page.open()
    page.until('() => /as of .* attach\\(/s.test(nb.area(0).innerText)')
    assert 'Error' not in page.text()
    page.until(PICTURE, 5)                  # the comparison is there without a kernel, too
    check_readable([o for o in page.js('nb.contrasts', 5) if o[0] != '●'])
    page.page.locator('.jp-Notebook .jp-Cell').nth(5).locator('.tnb-hover').first.hover()
    assert 'optimizer step' in page.js('nb.pointed')
