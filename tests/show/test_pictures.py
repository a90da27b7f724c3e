"Pictures are true: what is marked maps back to its value, curves do not lag, and what is left out is named"
import bisect, io, math, random, re
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageFont

from trainer_nb.draw import COLORS, GREY, SIZE, Chart, Envelope, Line, Panel, Plot, smooth
from trainer_nb.loop.history import History
from trainer_nb.runs.compare import Comparison, Source

FONT = ImageFont.truetype(f'{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf', SIZE)


def mean(values):
    known = [*filter(math.isfinite, values)]
    return math.fsum(known)/len(known) if known else math.nan

def history(losses, valids=(), ends=None, metrics=None, lr=None):
    "A history with plain means of epochs, of equal lengths unless `ends` is given; metrics: name → list"
    h, n = History(), len(losses)
    ends = ends or [n*(e + 1)//len(valids) for e in range(len(valids))]
    h.columns.extend(n, {'train_loss': losses, 'lr': lr or [.1]*n})
    for e, (start, end) in enumerate(zip([0, *ends], ends)):
        row = {k: values[e] for k, values in (metrics or {}).items()}
        if valids: row['valid_loss'] = valids[e]
        valid = {k: v for k, v in row.items() if k.startswith('valid_')}
        if valids: h.valid_rows.append({'batch': end, 'epoch': e, 'step': end, **valid})
        h.epoch_rows.append({'epoch': e, 'train_loss': mean(losses[start:end]), **row, 'lr': .1, 'time_s': 1.})
        h.ends.append(end)
    return h

def overfit():
    "Seven epochs of 20 batches; the third one is the best"
    train, valid = [1., .6, .4, .3, .2, .1, .06], [1.1, .8, .7, .75, .8, .86, .94]
    return history([v*(1 + i/100) for v in train for i in range(20)], valid,
                   metrics={'valid_accuracy': [1 - v/2 for v in valid]})

def picture(h, first=0, n_metrics=0, log=None): return Plot(first, n_metrics).chart(h.plot_data(), log=log)

def pixels(chart): return Image.open(io.BytesIO(chart.png()[0])).convert('RGB')

def rgb(color): return tuple(bytes.fromhex(color[1:]))

def absolute(d):
    "Write the lines of an SVG path from place to place, not each from the place before"
    x, y, res = 0., 0., ''
    for kind, numbers in re.findall(r'([Mlhv])([-+\d.,]+)', d):
        a, b, *_ = [*map(float, re.findall(r'-?[\d.]+', numbers)), 0.]
        if kind == 'M': x, y = a, b
        else: x, y = x + (0. if kind == 'v' else a), y + (a if kind == 'v' else b)
        res += 'h0' if (kind, a) == ('h', 0) else f'{kind if kind == "M" else "L"}{x:.1f},{y:.1f}'
    return res

class Drawn:
    "An SVG as a reader sees it: axes are read from the numbers beside them"
    def __init__(self, svg):
        root = ET.fromstring(svg)
        def all_of(name): return [o for o in root.iter() if o.tag.endswith('}' + name)]
        self.words = [(float(o.get('x')), float(o.get('y')), o.text, o.get('text-anchor', 'start'), o.get('fill'))
                      for o in all_of('text')]
        self.paths = [(absolute(o.get('d')), o.get('stroke'), float(o.get('stroke-width', 1)))
                      for o in all_of('path')]
        self.rects = [{k: float(o.get(k)) for k in ('x', 'y', 'width', 'height')}
                      for o in all_of('rect') if o.get('stroke') == GREY]

    def frames(self):
        "(left, top, right, bottom) of each panel"
        return [(o['x'], o['y'], o['x'] + o['width'], o['y'] + o['height']) for o in self.rects]

    def value(self, y, frame):
        "The value at a height, by the numbers at the left"
        left, top, _, bottom = frame
        at = sorted((wy - 4, float(text.replace('k', 'e3'))) for x, wy, text, anchor, _ in self.words
                    if anchor == 'end' and abs(x - left + 5) < 1 and top - 1 <= wy - 4 <= bottom + 1)
        assert len(at) > 1, at
        (y0, v0), (y1, v1) = at[0], at[-1]
        f, back = (math.log10, lambda v: 10**v) if 'log' in self.texts() else (float, float)
        return back(f(v0) + (f(v1) - f(v0))*(y - y0)/(y1 - y0))

    def dots(self, color):
        return [tuple(map(float, o)) for d, c, _ in self.paths if c == color and 'h0' in d
                for o in re.findall(r'M([\d.]+),(-?[\d.]+)h0', d)]

    def texts(self): return [o[2] for o in self.words]


# Values

KINDS = {'falling': lambda r, i: 2*math.exp(-i/300) + .1*r.random(), 'noisy': lambda r, i: r.lognormvariate(0, 1),
         'huge start': lambda r, i: 1e6*math.exp(-i/5) + r.random(),
         'spike': lambda r, i: 1e5 if i == 70 else r.random(), 'negative': lambda r, i: r.gauss(-5, 3),
         'tiny': lambda r, i: 1e-9*(1 + r.random())}

@pytest.mark.parametrize('kind, seed', [*zip(KINDS, range(6))])
def test_each_validation_point_and_epoch_mean_is_where_its_value_is(kind, seed):
    "The loss of a fit that overfits was a flat line at the frame's edge"
    r = random.Random(f'{kind}{seed}')
    n, epochs = r.choice([7, 90, 700, 5000]), r.choice([1, 3, 25])
    losses = [KINDS[kind](r, i) for i in range(n)]
    valids = [r.choice([1, 1, 20])*KINDS[kind](r, 400 + i) + (3 + .04*i)*(kind != 'tiny')
              for i in range(min(epochs, n))]
    h = history(losses, valids)
    drawn = Drawn(picture(h).svg())
    frame = left, top, right, bottom = drawn.frames()[0]
    dots = drawn.dots(COLORS[1])
    assert len(dots) == len(valids)
    size = max(map(abs, [*valids, *[o['train_loss'] for o in h.epoch_rows]]))
    low, high = sorted((drawn.value(top, frame), drawn.value(bottom, frame)))
    for (x, y), v in zip(dots, valids):
        assert left <= x <= right and top < y < bottom
        # labels stand at whole pixels
        read, near = drawn.value(y, frame), [drawn.value(y + d, frame) for d in (-1.5, 1.5)]
        assert min(near) <= v <= max(near) or abs(read - v) < .02*size, (read, v)
    assert all(low <= o['train_loss'] <= high for o in h.epoch_rows)

def random_history(r):
    "(losses, ends of epochs): falls, steps, spikes, gaps, and repeated values as accumulation makes them"
    epochs = round(10**r.uniform(0, 3.3))
    per = max(1, min(round(10**r.uniform(0, 3)), 20_000//epochs))
    ends = [per*(e + 1) for e in range(epochs)]
    if epochs < 500 and r.random() < .3: ends = sorted(r.sample(range(1, ends[-1] + 1), epochs))
    n = ends[-1] + (r.randrange(per) if r.random() < .3 else 0)
    start, fall, noise = 10**r.uniform(-3, 5), 10**r.uniform(-2, 0)*n, r.choice([0., .02, .2, 1.])
    floor, steps = start*10**r.uniform(-5, 0), sorted(r.randrange(n) for _ in range(r.choice([0, 0, 1, 3])))
    losses = [(start*math.exp(-i/fall) + floor)*.2**bisect.bisect(steps, i)*r.lognormvariate(0, noise)
              for i in range(n)]
    if r.random() < .2: losses = [v - start/2 for v in losses]
    for _ in range(r.choice([0, 0, 1, 5])): losses[r.randrange(n)] *= 10**r.uniform(1, 5)
    for _ in range(r.choice([0, 0, 1, 5])):
        i = r.randrange(n)
        for j in range(i, min(i + r.choice([1, per]), n)): losses[j] = r.choice([math.nan, math.inf])
    if r.random() < .2: losses = [losses[i - i % 4] for i in range(n)]
    return losses, ends

def path_of(chart):
    "Pixels of the bold blue curve in the SVG"
    blue = [o for o in Drawn(chart.svg()).paths if o[1] == COLORS[0] and 'h0' not in o[0]]
    d = max(blue, key=lambda o: o[2], default=[''])[0]      # none where no loss is finite
    return [tuple(map(float, o)) for o in re.findall(r'([\d.]+),(-?[\d.]+)', d)]

def check_epochs(chart, h, losses):
    "What is drawn over the batches of each epoch has their mean, in the curve's own numbers and in the SVG's pixels"
    panel = chart.panels[0]
    line = next(o for o in panel.lines if o.color == COLORS[0] and o.width > 1)
    points, own = path_of(chart), dict(zip(line.xs, line.ys))
    columns, steps = [x for x, _ in points], [0, *h.ends]
    (left, right), (low, high) = panel.xlim, map(math.log10 if panel.ylog else float, panel.ylim)
    per_x, per_y = panel.width/(right - left), (high - low)/panel.height
    def value(y):
        v = low + (panel.top + panel.height - y)*per_y
        return 10**v if panel.ylog else v
    def drawn(batch):       # the lowest and the highest value that the pixels, rounded to tenths, can stand for
        x = panel.left + per_x*(batch - left)
        i, j = bisect.bisect_left(columns, x - .101), bisect.bisect_right(columns, x + .101)
        ys = [y for _, y in points[i:j]] or [y for _, y in points[max(i - 1, 0):j + 1]]
        return value(max(ys) + .05), value(min(ys) - .05)
    means = [row['train_loss'] for row in h.epoch_rows]
    for start, end, m in zip(steps, h.ends, means):
        known = [i + 1 for i in range(start, end) if math.isfinite(losses[i])]
        if not known: continue
        far = 0 if per_x*(end - start) >= 1 else 2/per_x        # an epoch narrower than a pixel
        there = [o for a, b, o in zip(steps, h.ends, means) if o == o and b > start - far and a < end + far]
        lowest, highest = min(there) - .03*abs(m), max(there) + .03*abs(m)
        lows, highs = map(mean, zip(*map(drawn, known)))
        assert lows <= highest and lowest <= highs, (start, end, m)
        seen = [own.get(i, own[line.xs[bisect.bisect_right(line.xs, i) - 1]]) for i in known]
        assert lowest <= mean(seen) <= highest, (start, end, m)

@pytest.mark.parametrize('seeds', [range(6), pytest.param(range(6, 300), marks=pytest.mark.soak)],
                         ids=['few', 'many'])
def test_the_mean_of_the_bold_curve_over_each_epoch_is_that_of_the_epoch(seeds):
    "Smoothing over neighbouring bins drew 0.88 in an epoch whose mean was 0.47"
    for seed in seeds:
        losses, ends = random_history(random.Random(seed))
        h = history(losses, ends=ends)
        check_epochs(picture(h), h, losses)
        check_epochs(Comparison([Source('', h)], x='batch').chart(), h, losses)

def test_the_curve_ends_at_the_mean_that_its_legend_claims_and_does_not_lag():
    "A line fitted there ended at 0.68 to 1.87 of it"
    for seed in range(40):
        r = random.Random(seed)
        per, epochs, noise = r.choice([10, 20, 50, 200]), r.choice([1, 2, 5, 12, 40]), r.choice([.05, .2, .4])
        n, floor = per*epochs + r.randrange(per), 10**r.uniform(-3, 1)
        losses = [floor*(1 + 3*math.exp(-i/n*r.uniform(3, 4)))*r.lognormvariate(0, noise) for i in range(n)]
        env = Envelope()
        env.extend(losses, [per*(e + 1) for e in range(epochs)])
        _, ys, words = env.smooth()
        last = losses[-int(re.search(r'±(\d+)', words)[1]) - env.size:] if words else losses[-1:]
        assert .95 < ys[-1]/np.mean(last) < 1.05, (seed, words)

@pytest.mark.parametrize('huge', [1e20, 1e308, -1e308, 5e-324])
def test_one_huge_value_changes_no_curve_elsewhere_and_can_be_drawn(huge):
    for at in 0, 60, 200:
        values = [.5]*201
        values[at] = huge
        res = smooth(values)
        assert res[at - 100] == .5 and all(min(.5, huge) <= v <= max(.5, huge) for v in res if v == v)
    chart = picture(history(values, [1., huge]))
    chart.png()
    assert not re.search('inf|nan', chart.svg().replace('nan from', ''))
    history(values).plot()

def test_what_is_cut_off_has_an_arrow_with_its_value_and_leaves_the_frame():
    losses = [math.exp(-i/300) + .1 for i in range(2000)]
    losses[1234] = 512.
    chart = picture(history(losses, [.3]))
    assert [o for o in Drawn(chart.svg()).texts() if o[0] in '▲▼'] == ['▲ 512']
    assert '▲ 512' in {o.get_text() for o in chart.figure().texts}
    assert not [o for o in Drawn(picture(history(losses[:1200], [.3])).svg()).texts() if o[0] in '▲▼']
    line = Line(range(8), [.5, 2., 3., 2., .5, 9., -9., -9.], COLORS[0], may_leave=True)
    image = pixels(Chart(120, 120, [Panel(10, 5, 100, 100, [line], (0, 7), (0., 1.))]))
    assert not lit(image, COLORS[0], (25, 1, 50, 9)) and lit(image, COLORS[0], (10, 6, 25, 55))

def test_a_single_point_is_visible():
    h = history([1.]*4, [.5], metrics={'train_accuracy': [.2], 'valid_accuracy': [.9]})
    h.valid_rows[0]['valid_accuracy'] = math.nan
    chart = picture(h)
    panel = chart.panels[1]
    (x, y), = panel.place([2.5], [.2])
    assert any(math.dist((x, y), o) < .2 for o in Drawn(chart.svg()).dots(COLORS[0]))
    assert pixels(chart).getpixel((round(2*x), round(2*y) - 4)) != (255, 255, 255)
    assert [o for o in h.plot().axes[1].lines if list(o.get_ydata()) == [.2] and o.get_marker() == 'o']


# Words

@pytest.mark.parametrize('names', [
    ['accuracy', 'f1', 'a_metric_with_a_very_long_name_of_its_own'], [f'city_{i}_score' for i in range(14)]])
def test_legends_wrap_and_what_is_left_out_is_named(names):
    "Names of metrics that are not drawn ran into the losses"
    metrics = {f'{side}_{name}': [.1, .2, .3] for name in names for side in ('train', 'valid')}
    if names[12:]: metrics |= {f'valid_city_{k}_loss': [.1, .2, .3] for k in range(14)}
    chart = picture(history([1.]*60, [1., .9, .8], metrics=metrics))
    drawn = Drawn(chart.svg())
    legend = {o[2] for o in drawn.words if o[3] == 'start'}
    notes = [o.name for o in chart.panels[0].lines if o.name.startswith('not drawn')]
    assert notes == (['not drawn: valid_city_11_loss and 4 more'] if names[12:] else [])
    for o in notes: assert FONT.getlength(o) <= chart.panels[0].width - 12
    for name in names[:12]:
        assert name in legend or any(o[-1] == '…' and name.startswith(o[:-1]) for o in legend), name
    assert {'train_loss, mean of ±5 batches', 'each batch', 'valid_loss', 'lr 0.1', 'training'} <= legend
    for p in chart.panels:
        for row in p.legend():
            for (x, o), (x2, _) in zip(row, row[1:]): assert x2 - x > 15 + 6*len(o.name)
            assert len(row) == 1 or row[-1][0] + 15 + 6*len(row[-1][1].name) <= p.right + 1
        assert p.height > 20
    assert all(0 <= y <= chart.height and 0 <= x <= chart.width for x, y, *_ in drawn.words)

def rings(panel): return [(*o.xs, *o.ys) for o in panel.lines if o.mark == '○']

def hairlines(panel):
    return [(o.xs[0], o.end) for o in panel.lines if o.color == GREY and len(o.xs) == 2 and o.xs[0] == o.xs[1]]

@pytest.mark.parametrize('n', [1, 12])
def test_each_metric_has_a_panel_in_the_order_of_the_table(n):
    "Validation is orange, training blue, as for the losses; the best value of what is monitored has a ring"
    names = [f'm{k}' for k in range(n, 0, -1)]
    values = {f'{side}_{o}': [10.**k, 3*10.**k, 2*10.**k]
              for k, o in enumerate(names) for side in ('train', 'valid')}
    h = history([1.]*60, [1., .8, .9], metrics=values)
    h.latest.monitor = f'valid_{names[-1]}', 'max'
    losses, *panels = picture(h, 0, n).panels
    table = [o.removeprefix('valid_') for o in h.lines()[0] if o.startswith('valid_m')]
    assert [next(o.name for o in p.lines if o.name) for p in panels] == names == table
    assert len({(p.left, p.top) for p in panels}) == n
    for k, p in enumerate(panels):
        v, colors = 10.**k, {o.color: o.ys for o in p.lines if len(o.xs) == 3}
        assert p.ylim[0] < v and 3*v < p.ylim[1] < 4*v
        assert colors == dict.fromkeys(COLORS[:2], values[f'valid_{names[k]}'])
        assert all(o.color == COLORS[o.name == names[k]] for o in p.lines if o.name)
        assert hairlines(p) == [(40, '')] and rings(p) == [(40, 3*v)]*(k == n - 1)

def test_no_two_curves_look_alike_and_constant_rates_are_words():
    "Curves beyond the eighth have dashes; no other loss has the colours of training and validation"
    metrics = {f'valid_city_{k}_loss': [.1*k, .1*k + .01] for k in range(11)}
    h = history([1.]*60, [1., .9], metrics={**metrics, 'valid_f1': [.5, .6]}, lr=[.001]*60)
    losses, f1 = picture(h).panels
    lines = [o for o in losses.lines if o.name.startswith(('train', 'valid'))]
    assert len(lines) == len({(o.color, o.dash) for o in lines}) == 13
    assert [o.color for o in lines[:2]] == [*COLORS[:2]]
    assert not {*COLORS[:2]} & {o.color for o in lines[2:] if not o.dash}
    assert any(o.dash and f'"{o.dash}"' in losses.svg() for o in lines)
    assert [o.color for o in f1.lines if o.name] == [COLORS[1]]
    assert [o.name for o in losses.lines if o.name.startswith('lr')] == ['lr 0.001']

def test_numbers_at_the_axes_differ_and_do_not_overlap():
    "In one notation, and right within rounding"
    r = random.Random(0)
    for _ in range(200):
        low = r.choice([0., -1., 1.])*10**r.uniform(-7, 7)
        is_log, whole = r.random() < .3, r.random() < .3
        low, width = abs(low) or 1e-3 if is_log else low, 10**r.uniform(-4, 6)
        xlim = (low, low*(1 + width)) if is_log else (low, low + width*(abs(low) or 1.))
        panel = Panel(54, 20, r.choice([244, 534]), r.choice([28, 60, 180]), [], xlim, xlim, n_ticks=r.choice([3, 5]),
                      is_log=is_log, ylog=is_log, whole=whole)
        for found, place, size in zip(panel.ticks(), (panel.x, panel.y), (FONT.getlength, lambda o: .75*SIZE)):
            words = [label for _, label in found]
            assert len({*words}) == len(words), (xlim, words)
            for v, o in found:
                assert float(o.replace('k', 'e3')) == pytest.approx(v, rel=.006, abs=1e-12*abs(xlim[1])), (v, o)
            for mark in 'ek': assert len({mark in o for v, o in found if v}) <= 1, words
            for (v, a), (w, b) in zip(found, found[1:]):
                assert abs(place(w) - place(v)) > (size(a) + size(b))/2, (xlim, words)


# The best epoch

def lit(image, color, box, far=30):
    "Where pixels of a colour are in a box, on the page"
    left, top, right, bottom = (round(2*o) for o in box)
    return [(x/2, y/2) for x in range(left, right) for y in range(top, bottom)
            if max(abs(a - b) for a, b in zip(image.getpixel((x, y)), rgb(color))) < far]

def test_the_best_epoch_is_where_its_value_is():
    "A ring around the point, a line through all panels, both at batch 60 and a loss of 0.7: pixels map back to them"
    h = overfit()
    chart = picture(h)
    losses, metrics = chart.panels
    image = pixels(chart)
    def batch(p, x): return p.xlim[0] + (x - p.left)/p.width*(p.xlim[1] - p.xlim[0])
    def value(p, y): return p.ylim[1] - (y - p.top)/p.height*(p.ylim[1] - p.ylim[0])
    (x, y), = losses.place([60], [.7])
    ring = [o for o in lit(image, COLORS[1], (x - 9, y - 9, x + 9, y + 9)) if math.dist(o, (x, y)) > 4.5]
    assert len(ring) > 60
    assert abs(batch(losses, np.mean([o[0] for o in ring])) - 60) < .5
    assert abs(value(losses, np.mean([o[1] for o in ring])) - .7) < .01
    for p in chart.panels:
        (x, _), = p.place([60], p.ylim[:1])
        columns = [o[0] for o in lit(image, GREY, (x - 4, p.top + .8*p.height, x + 4, p.bottom - 1))]
        assert columns and abs(batch(p, np.mean(columns)) - 60) < .6, p.xlabel
        assert p.shade == (60, 140)
    words = [o[2] for o in Drawn(chart.svg()).words]
    assert 'best 0.7 · epoch 2' in words and 'since then: valid +34 %, train −85 %' in words and not rings(metrics)
    h.latest.monitor = 'valid_accuracy', 'max'      # a metric that is monitored has the ring
    losses, metrics = picture(h).panels
    assert rings(metrics) == [(60, 1 - .7/2)] and not rings(losses) and losses.shade is None
    assert hairlines(losses) == [(60, 'best valid_accuracy 0.65 · epoch 2')]
    h.latest.kept = h.epoch_rows[4]     # weights were restored, of another epoch
    assert hairlines(picture(h).panels[0])[0][0] == 100

def test_the_pointer_shows_recorded_values_and_epochs_have_their_numbers():
    h = overfit()
    chart = picture(h)
    panel, values = chart.panels[0], h.steps['train_loss']
    for x, text in panel.hover:
        epoch, batch = map(int, re.match(r'epoch (\d+), batch (\d+)\n', text).groups())
        shown = {k: float(v) for k, v in re.findall(r'(train_loss|valid_loss|lr) ([\d.e-]+)', text)}
        at = int(re.search(r'after batch (\d+):', text)[1])
        assert x == batch and epoch == (batch - 1)//20, text
        assert at == min(range(20, 141, 20), key=lambda o: abs(o - batch)), text
        real = {'train_loss': values[batch - 1], 'lr': .1, 'valid_loss': h.valid_rows[at//20 - 1]['valid_loss']}
        assert shown == pytest.approx(real, rel=5e-4)
    assert 30 <= len(panel.hover) <= 45 and panel.hover[-1][0] == 140
    name, *numbers = [o for o in Drawn(chart.svg()).words if o[1] > panel.bottom + 25 and o[0] < 600]
    assert name[2] == 'epoch' and [o[2] for o in numbers] == [*'0123456']
    assert [o[0] for o in numbers] == pytest.approx([x for x, _ in panel.place(range(20, 141, 20), [.1]*7)], abs=.6)


# Linear or logarithmic

def test_log_is_what_was_asked_for():
    "The same values on the other axis; where a loss is not above 0, an error says so, and there is no switch"
    h = overfit()
    assert not picture(h).panels[0].ylog and 'log' in Drawn(picture(h, log=True).svg()).texts()
    assert [h.plot(log=o).axes[0].get_yscale() for o in (True, False)] == ['log', 'linear']
    chart, steep = Plot().final(h.plot_data()), Plot().final(history([1e3*.9**i for i in range(90)]).plot_data())
    p = chart.other.panels[0]
    assert p.ylog and [x for x, _ in chart.panels[0].hover] == [x for x, _ in p.hover]
    for o, axis in (chart, 'logarithmic'), (steep, 'linear'):
        assert re.findall('(?:data-axis|aria-label)="(.*?)"', o.html()) == [axis]*2
    image = pixels(chart.other)
    for row, end in zip(h.epoch_rows, h.ends):
        y = p.bottom - p.height*math.log(row['valid_loss']/p.ylim[0])/math.log(p.ylim[1]/p.ylim[0])
        x = p.left + p.width*(end - p.xlim[0])/(p.xlim[1] - p.xlim[0])
        assert image.getpixel((round(2*x), round(2*y))) == rgb(COLORS[1])
    h.columns.extend(1, {'train_loss': [-.5], 'lr': [.1]})
    with pytest.raises(ValueError, match=r'log=True.*lowest is -0.5.*log=False'): h.plot(log=True)
    assert Plot().final(h.plot_data()).other is None

def test_an_axis_that_changes_in_mid_run_says_since_when():
    h = History()
    h.columns.extend(50, {'train_loss': [1.]*50})
    plot = Plot()
    def note(end): return [o.name for o in plot.chart(h.plot_data(), end).panels[0].lines if 'since' in o.name]
    assert not note(100)
    h.columns.extend(2, {'train_loss': [1e3, 1.]})
    plot.chart(h.plot_data(), log=True)     # of no account
    for loss in 500., .01, .01:
        h.valid_rows.append({'batch': h.n_steps, 'epoch': 0, 'valid_loss': loss})
        h.columns.extend(100, {'train_loss': [.01]*100})
    assert note(1000) == note(1000) == ['logarithmic since batch 352']
