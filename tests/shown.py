"What a fit shows and leaves behind: the expectations of test_front_ends.py and browser/"
import io, json, re
from base64 import b64decode
from urllib.parse import unquote

import nbformat
from bs4 import BeautifulSoup
from PIL import Image

from fits import N_EPOCHS

ENDS = 'done', 'interrupted', 'stopped', 'failed'
LIVE = 'progress', 'script', 'button', 'svg', 'canvas', 'iframe'    # tags that must not stay
INTERRUPTED = r'TrainingInterrupted: interrupted in epoch \d.*; learn\.resume\(\) continues'

def svg_of(html):
    "The pictures of a live view, as text"
    return ''.join(unquote(o).replace("'", '"') for o in re.findall('src="data:image/svg.xml,([^"]*)', html))

def rows(html):
    "Cells of the epoch table's rows"
    return [[o.text.strip() for o in row('td')] for row in BeautifulSoup(html, 'html.parser').select('tbody tr')]

def is_blank(png, box=None):
    "Whether a picture, or a box in it, has a single colour"
    return all(low == high for low, high in Image.open(io.BytesIO(png)).convert('RGB').crop(box).getextrema())

def check_table(
    html,
    end,
    n_rows,  # epochs in the table, from the first; None: some
):           # int: how many there are
    "Status and epoch table, static"
    soup = BeautifulSoup(html, 'html.parser')
    assert [o for o in ENDS if o in soup.text] == [end], soup.text
    assert not soup.find_all(LIVE) and len(soup('table')) <= 1, html
    epochs = []
    for row in rows(html):      # of many epochs some are left out: '… 4 more: learn.history.epochs'
        left_out = re.match(r'… (\d+) more', row[0])
        epochs += range(epochs[-1] + 1, epochs[-1] + 1 + int(left_out[1])) if left_out else [int(row[0])]
    first = epochs[0] if n_rows is None and epochs else 0
    assert epochs == list(range(first, first + len(epochs))) and n_rows in (None, len(epochs)), soup.text
    return len(epochs)

def check_png(png):
    image = Image.open(io.BytesIO(png))
    assert 300 <= image.width <= 2500 and 150 <= image.height <= 800 and not is_blank(png), image

def check_svgs(imgs):
    assert 1 <= len(imgs) <= 2 and all(len(o['alt']) > 20 for o in imgs), imgs
    for o in imgs: assert 'currentColor' in svg_of(str(o)) and o['src'].startswith('data:image/svg+xml,')

def check_outputs(
    outputs,          # of one cell, as nbformat
    end='done',       # what the status says, one of `ENDS`
    n_rows=N_EPOCHS,  # epochs in the table, from the first; None: some
    error=None,       # name of the error that the cell ended with
):
    "A cell holds a status line, a picture and a table, small, static, and readable without a kernel"
    shown = [o for o in outputs if o['output_type'] != 'error']
    errors = [o['ename'] for o in outputs if o['output_type'] == 'error']
    assert errors == ([error] if error else [])
    assert [o['output_type'] for o in shown] in (['display_data']*3, ['display_data'])      # of a fit, of a history
    html, parts = {'text/html', 'text/plain'}, [o['data'] for o in shown]
    assert [set(o) for o in parts] in ([html, html | {'image/png'}, html], [html | {'image/png'}])
    picture, others = parts[len(parts)//2], parts[::2]
    n = check_table(''.join(''.join(o['text/html']) for o in others), end, n_rows)
    text = '\n'.join(''.join(o['text/plain']) for o in others)
    n_shown = len(re.findall(r'^[^\w…]*\d+ ', text, re.M)) + sum(map(int, re.findall(r'^… (\d+) more', text, re.M)))
    assert end in text and n_shown == n and '\r' not in text, text
    assert '\x1b' not in text, text
    check_png(b64decode(''.join(picture['image/png'])))
    cell = nbformat.v4.new_code_cell(outputs=[*map(nbformat.from_dict, outputs)])
    size = len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])).encode())
    assert size < 200_000, size

def check_shown(outputs):
    "While a fit runs, it can be seen in another cell, too"
    line, picture, table = (o['data'] for o in outputs)
    assert rows(''.join(table['text/html'])) and {'image/png', 'text/html'} & picture.keys()
    check_dated(line)

def check_dated(data):
    "Output that is not final tells its time"
    status = BeautifulSoup(''.join(data['text/html']), 'html.parser').div.text
    assert re.search(r' · as of \d\d:\d\d:\d\d$', status), data['text/html'][:500]

def check_notebook(nb):
    "Nothing of widgets is left in a saved notebook"
    assert 'jupyter.widget' not in json.dumps(nb) and 'widgets' not in nb['metadata']

def check_html(page, n_rows=N_EPOCHS):
    "An HTML export shows the same, in its one cell with a picture"
    soup = BeautifulSoup(page, 'html.parser')
    areas = [o for o in soup.select('.jp-OutputArea') if o('img')]
    assert len(areas) == 1 and 'application/vnd.jupyter.widget-' not in page
    check_svgs(areas[0]('img'))
    for o in areas[0]('img'): o.extract()
    check_table(str(areas[0]), 'done', n_rows)

def check_markdown(text, n_rows=N_EPOCHS):
    "A Markdown export shows the same"
    check_svgs(BeautifulSoup(text, 'html.parser')('img'))
    check_table(re.sub('<img[^>]*>', '', text), 'done', n_rows)

def check_lines(
    lines,          # list of str: what a log holds, or a terminal in the end
    digest,         # of the learner; the last line begins with it
    columns=10**6,  # width of the terminal
):
    "A header, a line for each epoch, and nothing of a bar"
    lines = [o.rstrip().lstrip('*') for o in lines if o.strip()]
    ends = [i for i, o in enumerate(lines) if o.startswith('done: ')]       # a terminal's last line, which may break
    head, *epochs, last = [o for o in lines[:ends[0]] if o[:5] != 'learn'] + lines[-1:] if ends else lines
    assert head.split()[:2] == ['epoch', 'train_loss'] and last == digest, lines
    assert [o.split()[0] for o in epochs] == [str(i) for i in range(N_EPOCHS)], lines
    assert not set('█░%') & set(''.join(lines)) and all(len(o) <= columns for o in lines), lines

def check_interrupted(text):
    "One line instead of a traceback"
    assert re.fullmatch(INTERRUPTED, text.strip().splitlines()[-1]) and 'Traceback' not in text, text
    assert text.count('TrainingInterrupted') == 1, text

def both(looks):
    "From when all outputs are there"
    return looks[next(i for i, o in enumerate(looks) if o['n'] > 2):]

def check_steady(looks):
    "Once all outputs are there, the height grows by rows of the table only, and stays about the same at the end"
    looks = both(looks)
    heights = [round(o['height']) for o in looks if o['svg'] and 'as of' in o['text']]      # until the end comes
    jumps = [(a, b) for a, b in zip(heights, heights[1:]) if abs(a - b) > 1]
    last = looks[-1]['height']
    assert all(20 <= b - a <= 80 for a, b in jumps), jumps
    assert abs(last - heights[-1]) <= 30, (heights[-1], last)
    assert {o['n'] for o in looks} == {3} and not any(o['waits'] for o in looks if o['rows'])
    live = {o['text'] for o in looks if o['svg']}
    assert len(live) > 3 and not looks[-1]['svg'], live

def check_painted(
    looks,
    frames,  # list of (seconds, PNG): what the browser painted, in order
    boxes,   # (left, top, right, bottom) of each output
):
    "What was painted once is never blank again"
    start_s = both(looks)[0]['time_s']      # earlier frames may show what was there before
    for box in boxes:
        inked = [not is_blank(png, box) for time_s, png in frames if time_s > start_s]
        inked = inked[inked.index(True):]
        assert all(inked) and len(inked) > 3, inked

def check_readable(contrasts, least=10):
    "All (text, contrast to what is behind it), more than a few"
    assert len(contrasts) > least and not [o for o in contrasts if o[1] < 4.5], contrasts

def check_visible(png):
    "A picture that stands out from what is behind it"
    def light(rgb):
        return sum(w*(v/12.92 if v <= .04045 else ((v + .055)/1.055)**2.4)
                   for w, v in zip((.2126, .7152, .0722), (o/255 for o in rgb)))
    counts = {rgb: n for n, rgb in Image.open(io.BytesIO(png)).convert('RGB').getcolors(2**24)}
    behind = light(max(counts, key=counts.get))
    ink = sum(n for rgb, n in counts.items() if (max(light(rgb), behind) + .05)/(min(light(rgb), behind) + .05) >= 3)
    assert ink > .001*sum(counts.values()), ink
