"The learning-rate finder in JupyterLab and Notebook 7: live, at its end, and with a rate picked by mouse"

from browser.conftest import lab_first
from shown import both, check_notebook, check_readable, check_visible

FIND = 'lr_find.Budget = Eager\nlearn = start(step_s=.03)\nbefore = digest(learn)\ncurve = learn.lr_find()'
SAME = 'print(digest(learn) == before, curve.picked, len(curve.lrs))'
RATES = 'print([g["lr"] for g in learn.opt.param_groups])'
HANDLE = '.noUi-handle'

PICTURE = 'nb.cell(0).model.outputs.toJSON()[1].data["image/png"]'

def drag(page, dx):
    "Move the slider of cell 0 with the mouse, by some pixels; the picture follows before it is let go"
    box = page.page.locator(HANDLE).bounding_box()
    x, y = box['x'] + box['width']/2, box['y'] + box['height']/2
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    for part in .5, 1:
        picture = page.js(PICTURE)
        page.page.mouse.move(x + part*dx, y, steps=3)
        page.until(f'old => {PICTURE} != old', picture)
    page.page.mouse.up()
    page.until_still()

def until_picked(page, k, low, high):
    "The kernel may still have moves to hear of"
    for _ in range(20):
        page.run(k)
        picked = float(page.text(k).split()[1])
        if low < picked < high: return picked
        page.page.wait_for_timeout(100)
    raise AssertionError(f'{picked} is picked: expected {low} to {high}')

def kinds(page, k=0): return [set(o['data']) for o in page.outputs(k)]

@lab_first
def test_search_and_pick(page):
    page.cells(FIND, SAME, SAME, 'learn.fit(99, on_interrupt="return")', RATES)
    page.watch()
    page.run()
    page.until(f'nb.area(0).querySelector("{HANDLE}") && nb.area(0).querySelector("img")?.naturalWidth')
    looks = [o for o in both(page.seen()['looks']) if o['n'] == 3]       # the slider comes at the end
    heights = {round(o['height']) for o in looks if o['svg']}       # the table comes at the end
    assert max(heights) - min(heights) <= 1 and not any(o['waits'] for o in looks)
    assert len({o['text'] for o in looks if o['svg']}) > 3
    check_readable(page.js('nb.contrasts', 0))
    check_visible(page.shot(0, 1))
    page.run(1)
    same, picked, n = page.text(1).split()
    assert same == 'True' and n == '100' and f'suggestion {float(picked):.2g} ' in page.text()
    drag(page, -134)        # a quarter of the curve's 534 pixels is two of its eight decades
    picked = until_picked(page, 2, .007*float(picked), .014*float(picked))
    page.press(f'use {picked:.2g}')
    page.wait_text(f' → {picked:.2g}')
    page.start(3)
    page.wait_text('epoch', 3)
    page.press(f'use {picked:.2g}')
    page.wait_text('nothing is set: a fit is running')      # also while it runs
    page.interrupt()
    page.wait()
    page.press(f'use {picked:.2g}')
    page.wait_text(f' → {picked:.2g}')
    page.run(4)
    assert page.text(4).strip() == f'[{picked}]'
    check_readable(page.js('nb.contrasts', 0))
    page.press('Done')
    page.until(f'!nb.area(0).querySelector("{HANDLE}")')
    html = {'text/html', 'text/plain'}
    assert kinds(page) == [html, {'image/png', *html}, html, html]
    check_notebook(page.save())
