"The confusion matrix, and a review of samples, in JupyterLab and Notebook 7"
from browser.conftest import lab_first
from shown import check_readable

FIT = '''from trainer_nb.all import *
set_seed(0)
x = torch.randn(400, 6)
y = x[:, :4].argmax(1)
learn = Learner(nn.Linear(6, 4), (x, y), (x, y), loss_fn=F.cross_entropy, lr=.1, display=False)
learn.fit(2)
matrix = learn.results().confusion()
matrix'''

REVIEW = FIT.split('learn =')[0] + '''learn = Learner(nn.Linear(6, 4), (x, y), loss_fn=F.cross_entropy, lr=.1,
                hooks=[TrackSamples()], display=False)
learn.fit(2)
learn.data_map.review(3)'''

PLACES = '''() => [".widget-gridbox", ".widget-gridbox + *"].map((o, i) => {
  const b = nb.area(0).querySelector(o).getBoundingClientRect();
  return [i ? b.left : b.right, b.top] })'''
BUTTONS = 'nb.area(0).querySelectorAll("button[title]").length'
HEIGHTS = '() => nb.parts(0).map(o => o.clientHeight)'
# the texts of the table of samples beside the matrix
SAMPLES = '''() => nb.area(0).querySelectorAll(".widget-gridbox + * tbody tr").values()
  .map(o => o.innerText).toArray()'''

@lab_first
def test_the_matrix_is_the_buttons(page):
    page.cells(FIT, 'print(*matrix.counts.flatten().tolist())')
    page.run()
    page.run(1)
    counts = [int(o) for o in page.text(1).split()]
    page.until(f'n => {BUTTONS} == n', sum(map(bool, counts)))
    table, live = page.js(HEIGHTS)
    assert table == 0 < live, 'the table and the buttons show the same'
    check_readable(page.js('nb.contrasts', 0))
    for k in sorted(range(16), key=counts.__getitem__)[-3:]:
        title = f'target {k//4}, predicted {k % 4}'
        page.page.locator(f'.jp-Notebook .jp-Cell button[title^="{title}:"]').click()
        page.wait_text(f'{title}: {counts[k]} sample')
        found, mark = page.js(SAMPLES), '✓' if k//4 == k % 4 else '✗'
        assert len(found) == min(counts[k], 12) and all(f'\t{k//4}\t{k % 4} {mark}' in o for o in found), found
        assert ('; the 12 with the largest losses' in page.text()) == (counts[k] > 12)
    check_readable(page.js('nb.contrasts', 0))
    page.page.locator('.jp-Notebook .jp-Cell button[title^="target"]').first.focus()
    page.page.keyboard.press('Tab')
    page.page.keyboard.press('Enter')
    second = page.js('document.activeElement.title.split(",", 2).join()')
    page.wait_text(second.split(':')[0] + ':')
    for width, beside in (1440, True), (500, False):
        page.page.set_viewport_size({'width': width, 'height': 1000})
        page.js('nb.painted')
        (right, top), (left, their_top) = page.js(PLACES)
        assert (left >= right and abs(top - their_top) < 10) == beside, (right, left, top, their_top)
    page.page.set_viewport_size({'width': 1000, 'height': 1000})

    saved = page.save().cells[0].outputs
    assert 'rows are targets' in saved[0].data['text/html'] and 'of 400 right' in saved[0].data['text/plain']
    page.js('() => nb.kernel().restart()')      # forgets the buttons
    page.open()
    page.until(f'({HEIGHTS})()[1] == 0')
    assert page.js(HEIGHTS)[0] > 100 and 'Error' not in page.text() and 'of 400 right' in page.text()

@lab_first
def test_buttons_of_a_review_write_what_is_decided(page):
    page.cells(REVIEW, "print(*learn.data_map.ranked()[:2].tolist(), open('changes.csv').read(), sep='\\n')")
    page.run()
    page.wait_text('0 of 3 samples decided')
    page.page.get_by_role('button', name='leave out').first.click()
    page.wait_text('1 of 3 samples decided')
    page.page.locator('.jp-OutputArea select').nth(1).select_option(label='2')
    page.wait_text('2 of 3 samples decided')
    check_readable(page.js('nb.contrasts', 0))
    page.run(1)
    first, second, _, *rows = page.text(1).split()
    assert {o.rsplit(',', 2)[0] for o in ' '.join(rows).replace('leave out', 'leave').split()} == {
        f'{first},leave,', f'{second},label,2'}
    assert page.js(HEIGHTS)[0] == 0 < page.js(HEIGHTS)[1], 'the pictures stand there twice'
