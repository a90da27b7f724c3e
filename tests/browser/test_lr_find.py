"The learning-rate finder in JupyterLab and Notebook 7: live, and at its end"

from browser.conftest import lab_first
from shown import both, check_notebook, check_readable, check_visible

FIND = 'lr_find.Budget = Eager\nlearn = start(step_s=.03)\nbefore = digest(learn)\ncurve = learn.lr_find()'
SAME = 'print(digest(learn) == before, curve.suggestion, len(curve.lrs))'

@lab_first
def test_search(page):
    page.cells(FIND, SAME)
    page.watch()
    page.run()
    page.until('nb.area(0).querySelector("img")?.naturalWidth')
    looks = both(page.seen()['looks'])
    heights = {round(o['height']) for o in looks if o['svg']}       # the table comes at the end
    assert max(heights) - min(heights) <= 1 and not any(o['waits'] for o in looks)
    assert len({o['text'] for o in looks if o['svg']}) > 3
    check_readable(page.js('nb.contrasts', 0), 5)
    check_visible(page.shot(0, 1))
    page.run(1)
    same, lr, n = page.text(1).split()
    assert same == 'True' and n == '100' and f'suggestion {float(lr):.2g} ' in page.text()
    html = {'text/html', 'text/plain'}
    assert [set(o['data']) for o in page.outputs()] == [html, {'image/png', *html}, html]
    check_notebook(page.save())
