"Pointing at a picture: the text of the nearest place, and a line through all panels at exactly that place"
import io
from pathlib import Path

import nbformat, pytest
from PIL import Image

SHOW = '''from trainer_nb.draw import Chart, Line, Panel
from IPython.display import HTML
xs = list(range(1001))
hover = [(x, f'batch {x}\\ntrain {x/1000:.3f}') for x in xs[::EACH]]
rising = Line(xs, [x/1000 for x in xs], '#0072B2', 'train')
upper = Panel(54, 24, 534, 120, [rising], (0, 1000), (0, 1), None, hover=hover)
lower = Panel(54, 160, 534, 40, [Line(xs, [1.]*1001, '#0072B2')], (0, 1000), (0, 2), 'batch')
HTML(Chart(604, 236, [upper, lower]).html())'''
DRAWN = 'nb.area(0).querySelector("img")?.naturalWidth'

def point(page, share, k=0):
    "Move the mouse to a place on the horizontal axis, in [0, 1]; return the text in the box, and where the axis is"
    box = page.page.locator('.tnb-hover').first.bounding_box()
    page.page.mouse.move(box['x'] + share*box['width'], box['y'] + box['height']/2)
    page.js('nb.painted')
    return page.js('nb.pointed'), box

def column_of(page, box, share):
    "Where the cross-hair stands in the window: pixels that change in the upper *and* in the lower panel"
    def shot():
        page.js('nb.painted')
        return Image.open(io.BytesIO(page.page.screenshot())).convert('RGB')
    lit = shot()
    page.page.mouse.move(2, 2)
    plain = shot()
    rows = [round(box['y'] + part*box['height']) for part in (.62, .95)]
    found = [{x for x in range(plain.width) if plain.getpixel((x, y)) != lit.getpixel((x, y))} for y in rows]
    return sorted(found[0] & found[1])

# few: 0, 150, ... 900, and none in the middle of its column at the ends
@pytest.mark.parametrize('each, far', [(1, .008), (150, .101)], ids=['many', 'few'])
def test_columns_over_a_picture(page, each, far):
    page.cells(SHOW.replace('EACH', str(each)))
    page.run()
    page.until(DRAWN)
    for share in .0, .251, .5, .749, 1.:
        text, box = point(page, min(max(share, .001), .999))
        batch, train = text.replace('\\a ', '\n').split('\n')
        x = int(batch.removeprefix('batch '))
        assert train == f'train {x/1000:.3f}' and abs(x/1000 - share) <= far, text
        lines = column_of(page, box, share)
        assert lines and abs(lines[len(lines)//2] - box['x'] - x/1000*box['width']) < 1.5, (x, lines, box)

TESTS = f'''import sys; sys.path.insert(0, {str(Path(__file__).parents[1]/"show")!r})
from test_pictures import overfit
h = overfit()
h.flags = [(50, "lr ÷ 2 → 0.05")]
h'''

def test_a_flag_is_named_where_it_stands_and_the_switch_shows_the_other_axis(page):
    "By mouse and by keyboard, in a saved notebook, too; where it is not trusted, picture and table are left"
    page.cells(TESTS)
    page.run()
    page.until(DRAWN)
    texts = [point(page, (batch + 1.1)/143.2)[0] for batch in (30, 50, 70)]       # the axis begins at -1.1
    assert [o.startswith('△ lr ÷ 2 → 0.05, after batch 50') for o in texts] == [False, True, False], texts
    page.page.mouse.move(2, 2)
    page.js('nb.painted')
    before = page.shot(0)
    box = page.page.locator('.tnb-switch input').last
    box.check()
    page.until('nb.painted().then(() => true)')
    assert page.shot(0) != before
    assert page.js('() => getComputedStyle(nb.area(0).querySelector("img")).content').startswith('url("data:image/svg')
    box.focus()
    page.page.keyboard.press('Space')
    page.until('() => getComputedStyle(nb.area(0).querySelector("img")).content == "normal"')
    nb = page.save()
    html = nb.cells[0].outputs[0].data['text/html']
    nb.cells[0].outputs[0].data['text/html'] = html + '<!-- changed by somebody else -->'
    page.path.write_text(nbformat.writes(nb))
    page.open()
    assert page.js('() => !nb.cell(0).model.trusted && nb.area(0).querySelector("img").naturalWidth > 0')
    assert page.text().split()[0] == 'epoch' and not page.page.locator('.tnb-switch input').last.is_visible()
