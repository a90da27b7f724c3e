"Pictures are true: what is marked maps back to its value, curves do not lag, and what is left out is named"
import bisect, io, math, random, re
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pytest, torch
from PIL import Image, ImageFont

from trainer_nb.base import format_value
from trainer_nb.draw import (
    ALARM, COLORS, GREY, SIZE, Chart, Envelope, Line, Panel, Plot, limits, smooth
)
from trainer_nb.draw.chart import ticks
from trainer_nb.draw.page import DARK, INK, STYLES
from trainer_nb.loop.history import History
from trainer_nb.learner import Learner
from trainer_nb.runs.compare import Comparison, Source
from trainer_nb.show.lr_find import LRCurve, trailing_average

FONT = f'{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf'


def history(losses, valids=(), name='loss', metrics=None, lr=None):
    "A history of as many epochs as there are validation losses; metrics: name → list"
    h, n = History(), len(losses)
    h.columns.extend(n, {'train_' + name: losses, 'lr': lr or [.1]*n})
    for e, v in enumerate(valids):
        start, end = n*e//len(valids), n*(e + 1)//len(valids)
        more = {k: values[e] for k, values in (metrics or {}).items()}
        valid = {'valid_' + name: v, **{k: v for k, v in more.items() if k.startswith('valid_')}}
        h.valid_rows.append({'batch': end, 'epoch': e, 'step': end, **valid})
        h.epoch_rows.append({'epoch': e, 'train_' + name: math.fsum(losses[start:end])/max(end - start, 1), **more,
                             **valid, 'lr': .1, 'time_s': 0.})
        h.ends.append(end)
    return h

def picture(h, first=0, n_metrics=0, log=None): return Plot(first, n_metrics).chart(h.plot_data(), log=log)

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
        name = lambda o: o.tag.rpartition('}')[2]
        self.words = [(float(o.get('x')), float(o.get('y')), o.text, o.get('text-anchor', 'start'), o.get('fill'))
                      for o in root.iter() if name(o) == 'text']
        self.paths = [(absolute(o.get('d')), o.get('stroke'), float(o.get('stroke-opacity', 1)),
                       float(o.get('stroke-width', 1)))
                      for o in root.iter() if name(o) == 'path']
        self.rects = [{k: float(o.get(k)) for k in ('x', 'y', 'width', 'height')}
                      for o in root.iter() if name(o) == 'rect' and o.get('stroke') == GREY]
        self.width, self.height = map(float, root.get('viewBox').split()[2:])

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
        is_log = any(text == 'log' for _, _, text, _, _ in self.words)
        f, back = (math.log10, lambda v: 10**v) if is_log else (float, float)
        return back(f(v0) + (f(v1) - f(v0))*(y - y0)/(y1 - y0))

    def dots(self, color):
        return [tuple(map(float, o)) for d, c, *_ in self.paths if c == color and 'h0' in d
                for o in re.findall(r'M([\d.]+),(-?[\d.]+)h0', d)]

    def texts(self): return [o[2] for o in self.words]


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

def test_a_single_batch_that_is_cut_off_has_an_arrow_with_its_value():
    losses = [math.exp(-i/300) + .1 for i in range(2000)]
    losses[1234] = 512.
    h = history(losses, [.3])
    plot = picture(h)
    assert '▲ 512' in Drawn(plot.svg()).texts()
    assert '▲ 512' in {o.get_text() for o in plot.figure().texts}
    assert not [o for o in Drawn(picture(history(losses[:1200], [.3])).svg()).texts() if o[0] in '▲▼']

def test_of_thousands_of_validation_points_none_that_stands_out_is_lost():
    valids = [1.]*2000
    valids[777] = 9.
    h = history([1.]*4000, valids)
    ys = next(o for o in picture(h).panels[0].lines if o.name == 'valid_loss').ys
    assert max(ys) == 9. and len(ys) <= 400


# Curves

@pytest.mark.parametrize('n', [10, 300])
def test_the_bold_curve_does_not_lag(n):
    "On a line it is the line, but for the means at its ends; on a step it is right half a window beside the step"
    line, step = [5 - .01*i for i in range(n)], [2.]*(n//2) + [1.]*(n - n//2)
    half = min(10, n//12)
    assert smooth(line)[half:n - half] == pytest.approx(line[half:n - half])
    there = smooth(step)
    assert all(abs(a - b) < 1e-9 for i, (a, b) in enumerate(zip(there, step)) if abs(i + .5 - n//2) > half)
    assert there[:n//2] == pytest.approx([3 - o for o in reversed(there[n - n//2:])]) or n % 2
    assert all(1 - 1e-9 <= o <= 2 + 1e-9 for o in there)

def test_the_marks_of_the_finder_stand_on_the_curve_that_is_seen():
    n = 100
    curve = LRCurve(1e-7, 10, n, ('minimum', 'steep', 'valley'))
    curve.lrs = np.geomspace(1e-7, 10, n).tolist()
    curve.losses = [2.3 - 2*math.exp(-((i - 70)/12)**2) + (0 if i < 80 else .1*(i - 80)) for i in range(n)]
    panel, = curve.chart().panels
    seen = next(o for o in panel.lines if o.name == 'loss')
    # the average of the rules comes later
    assert abs(seen.ys.index(min(seen.ys)) - curve.losses.index(min(curve.losses))) <= 1
    assert curve.smoothed == trailing_average(curve.losses, .98) and curve.smoothed.index(min(curve.smoothed)) > 75
    for o in panel.lines:
        if o.points: assert o.ys[0] == min(zip(seen.xs, seen.ys), key=lambda p: abs(math.log(p[0]/o.xs[0])))[1]
    for (x, text), lr, loss, v in zip(panel.hover, curve.lrs, curve.losses, seen.ys, strict=True):
        assert x == lr and text == f'lr {lr:.2g}\nloss {loss:.4g}\nsmoothed {v:.4g}'
    assert str(curve.chart()) == 'plot of the loss by learning rate, 100 points'

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

def recorded(losses, ends):
    "A history, with the plain mean of each epoch"
    h = History()
    for start, end in zip([0, *ends], ends):
        h.columns.extend(end - start, {'train_loss': losses[start:end]})
        known = list(filter(math.isfinite, losses[start:end]))
        h.epoch_rows.append({'epoch': len(h), 'train_loss': math.fsum(known)/len(known) if known else math.nan})
        h.ends.append(end)
    h.columns.extend(len(losses) - h.n_steps, {'train_loss': losses[h.n_steps:]})
    return h

def path_of(chart):
    "Pixels of the bold blue curve in the SVG"
    blue = [o for o in Drawn(chart.svg()).paths if o[1] == COLORS[0] and 'h0' not in o[0]]
    d = max(blue, key=lambda o: o[3], default=[''])[0]      # none where no loss is finite
    return [tuple(map(float, o)) for o in re.findall(r'([\d.]+),(-?[\d.]+)', d)]

def check_epochs(chart, h, losses):
    "What is drawn over the batches of each epoch has their mean, in the curve's own numbers and in the SVG's pixels"
    panel = chart.panels[0]
    line = next(o for o in panel.lines if o.color == COLORS[0] and o.width > 1)
    points, own = path_of(chart), dict(zip(line.xs, line.ys))
    pixels, steps = [x for x, _ in points], [0, *h.ends]
    (left, right), (low, high) = panel.xlim, map(math.log10 if panel.ylog else float, panel.ylim)
    per_x, per_y = panel.width/(right - left), (high - low)/panel.height
    def value(y):
        v = low + (panel.top + panel.height - y)*per_y
        return 10**v if panel.ylog else v
    def drawn(batch):       # the lowest and the highest value that the pixels, rounded to tenths, can stand for
        x = panel.left + per_x*(batch - left)
        i, j = bisect.bisect_left(pixels, x - .101), bisect.bisect_right(pixels, x + .101)
        ys = [y for _, y in points[i:j]] or [y for _, y in points[max(i - 1, 0):j + 1]]
        return value(max(ys) + .05), value(min(ys) - .05)
    means = [row['train_loss'] for row in h.epoch_rows]
    for start, end, mean in zip(steps, h.ends, means):
        known = [i + 1 for i in range(start, end) if math.isfinite(losses[i])]
        if not known: continue
        far = 0 if per_x*(end - start) >= 1 else 2/per_x        # an epoch narrower than a pixel
        there = [m for a, b, m in zip(steps, h.ends, means) if m == m and b > start - far and a < end + far]
        room = .03*abs(mean)
        lows, highs = zip(*map(drawn, known))
        assert math.fsum(lows)/len(known) <= max(there) + room and min(there) - room <= math.fsum(highs)/len(known)
        seen = [own.get(i, own[line.xs[bisect.bisect_right(line.xs, i) - 1]]) for i in known]
        assert min(there) - room <= math.fsum(seen)/len(seen) <= max(there) + room, (start, end, mean)

@pytest.mark.parametrize('seeds', [range(8), pytest.param(range(8, 500), marks=pytest.mark.soak)],
                         ids=['few', 'many'])
def test_the_mean_of_the_bold_curve_over_each_epoch_is_that_of_the_epoch(seeds):
    "Smoothing over neighbouring bins drew 0.88 in an epoch whose mean was 0.47"
    for seed in seeds:
        losses, ends = random_history(random.Random(seed))
        h = recorded(losses, ends)
        check_epochs(picture(h), h, losses)
        check_epochs(Comparison([Source('', h)], x='batch').chart(), h, losses)

def test_a_picture_that_grew_is_that_of_all_batches_at_once(seed=0):
    r = random.Random(seed)
    losses, ends = random_history(r)
    whole, h = recorded(losses, ends), History()
    plot, source = Plot(), Source('', h)
    cuts = {*ends, len(losses), *(r.randrange(len(losses)) for _ in range(40))}
    for start, end in zip([0, *sorted(cuts)], sorted(cuts)):
        h.columns.extend(end - start, {'train_loss': losses[start:end]})
        if r.random() < .1: plot.chart(h.plot_data(), log=False)
        if end in ends: h.add_epoch(whole.epoch_rows[len(h)])
        if r.random() < .1: source.update()
    assert plot.chart(h.plot_data()).svg() == picture(whole).svg()
    seen, there = (Comparison([o], x='batch').chart().svg() for o in (source, Source('', whole)))
    assert seen == there

def test_the_stored_picture_shows_the_means_of_steep_epochs():
    "Twelve epochs, each a third of the one before; a column of pixels in the middle of each"
    losses = [3.**-(i//40) for i in range(480)]
    h = recorded(losses, range(40, 481, 40))
    chart = picture(h)
    image, panel = Image.open(io.BytesIO(chart.png()[0])).convert('RGB'), chart.panels[0]
    assert panel.ylog
    low, high = map(math.log10, panel.ylim)
    for e in range(12):
        x = round(2*(panel.left + panel.width*(40*e + 20.5 - panel.xlim[0])/(panel.xlim[1] - panel.xlim[0])))
        rows = range(round(2*panel.top), round(2*(panel.top + panel.height)))
        blue = [y for y in rows if image.getpixel((x, y)) == tuple(bytes.fromhex(COLORS[0][1:]))]
        y = sum(blue)/len(blue)/2
        assert abs(low + (panel.top + panel.height - y)*(high - low)/panel.height + e*math.log10(3)) < .03

# Words

def light(color):
    "Linear red, green and blue, in [0, 1]"
    v = np.frombuffer(bytes.fromhex(color[1:]), 'u1')/255
    return np.where(v <= .04045, v/12.92, ((v + .055)/1.055)**2.4)

def contrast(a, b):
    low, high = sorted(light(o) @ (.2126, .7152, .0722) for o in (a, b))
    return (high + .05)/(low + .05)

def seen_by_deuteranopes(color):
    "CIELAB of a colour without green cones (Machado, Oliveira and Fernandes, 2009)"
    cones = [.367322, .860646, -.227968], [.280085, .672501, .047413], [-.01182, .04294, .968881]
    xyz = [[.4124, .3576, .1805], [.2126, .7152, .0722], [.0193, .1192, .9505]] @ np.clip(cones @ light(color), 0, 1)
    xyz = xyz/[.9505, 1, 1.089]
    x, y, z = np.where(xyz > .008856, np.cbrt(xyz), 7.787*xyz + 16/116)
    return 116*y - 16, 500*(x - y), 200*(y - z)

def test_words_are_readable_in_both_themes():
    "A kept picture has a ground of its own; live words have the colour of the page's text"
    h = history([1.]*50, [.5, .6], metrics={'valid_accuracy': [.5, .6], 'train_accuracy': [.4, .5]})
    chart = picture(h)
    assert contrast(INK, '#FFFFFF') >= 4.5
    image = Image.open(io.BytesIO(chart.png()[0]))
    assert image.convert('RGB').getpixel((0, 0)) == (255, 255, 255)
    assert image.size == (2*chart.width, 2*chart.height)
    svg = chart.svg()
    assert {o[4] for o in Drawn(svg).words if o[2] not in '●━─ '} == {None}
    for page in '#FFFFFF', DARK['#FFFFFF']:
        dark = DARK if page != '#FFFFFF' else {}
        for c in *COLORS, ALARM, GREY: assert contrast(dark.get(c, c), page) >= 3, c
        colors = [seen_by_deuteranopes(dark.get(c, c)) for c in COLORS]
        assert all(math.dist(a, b) >= 25 for a, b in zip(colors, [*colors[1:], colors[0]]))
    fig = h.plot()
    assert fig.get_facecolor()[:3] == (1, 1, 1)
    for ax in fig.axes: assert {o.get_color() for o in ax.get_xticklabels() + ax.get_yticklabels()} <= {INK}

@pytest.mark.parametrize('names', [
    ['accuracy', 'f1', 'a_metric_with_a_very_long_name_of_its_own'], [f'metric_{i}' for i in range(12)]])
def test_legends_wrap_and_what_is_left_out_is_named(names):
    metrics = {f'{side}_{name}': [.1, .2, .3] for name in names for side in ('train', 'valid')}
    chart = picture(history([1.]*60, [1., .9, .8], metrics=metrics))
    svg = chart.svg()
    drawn = Drawn(svg)
    legend = {o[2]: o for o in drawn.words if o[3] == 'start'}
    assert not any(o.startswith('not drawn') for o in drawn.texts())
    for name in names: assert name in legend or any(o[-1] == '…' and name.startswith(o[:-1]) for o in legend), name
    assert {'train_loss, mean of ±5 batches', 'each batch', 'valid_loss', 'lr 0.1'} <= legend.keys()
    assert 'training' in legend
    for p in chart.panels:
        for row in p.legend():
            for (x, o), (x2, _) in zip(row, row[1:]): assert x2 - x > 15 + 6*len(o.name)
            assert len(row) == 1 or row[-1][0] + 15 + 6*len(row[-1][1].name) <= p.right + 1
        assert p.height > 20
    assert all(0 <= y <= chart.height and 0 <= x <= chart.width for x, y, *_ in drawn.words)

@pytest.mark.parametrize('n', [1, 3, 4, 5, 7, 12])
def test_each_metric_has_a_panel_in_the_order_of_the_table(n):
    "Validation is orange, training blue, as for the losses; from the start of one size, without frames before a value"
    names = [f'm{k}' for k in range(n, 0, -1)]
    values = {f'{side}_{o}': [10.**k, 3*10.**k, 2*10.**k] for k, o in enumerate(names) for side in ('train', 'valid')}
    h = history([1.]*60, [1., .8, .9], metrics=values)
    h.latest.monitor = f'valid_{names[-1]}', 'max'
    chart, before = picture(h, 0, n), picture(history([1.]*5), 0, n)
    assert (before.width, before.height) == (chart.width, chart.height) and len(before.panels) == 1
    assert picture(History(), 0, n).panels[0].yticks == [] and before.html()
    losses, *panels = chart.panels
    table = [o.removeprefix('valid_') for o in h.lines()[0] if o.startswith('valid_m')]
    assert [next(o.name for o in p.lines if o.name) for p in panels] == names == table
    assert not any(a.left == b.left and a.top == b.top for i, a in enumerate(panels) for b in panels[:i])
    for k, p in enumerate(panels):
        v, colors = 10.**k, {o.color: o.ys for o in p.lines if len(o.xs) == 3}
        assert p.ylim[0] < v and 3*v < p.ylim[1] < 4*v
        assert colors == dict.fromkeys(COLORS[:2], values[f'valid_{names[k]}'])
        assert all(o.color == COLORS[o.name == names[k]] for o in p.lines if o.name)
        assert hairlines(p) == [(40, '')] and rings(p) == [(40, 3*v)]*(k == n - 1)
    assert [o.color for o in losses.lines if o.name.startswith(('train', 'valid'))] == [*COLORS[:2]]
    texts = [text for p in panels for x, text in p.hover if x == 40]
    for k, name in enumerate(names):
        for side in 'train', 'valid':
            assert sum(f'{side}_{name} {format_value(3*10.**k)}' in o.split('\n') for o in texts) == 1

def test_no_other_loss_has_the_colours_of_training_and_validation():
    metrics = {f'valid_{o}': [.5, .6] for o in ('loss_g', 'a_loss_d', 'f1')}
    h = history([1.]*60, [1., .9], name='loss_d', metrics=metrics)
    losses, metrics = picture(h).panels
    assert [o.color for o in losses.lines if o.name.startswith(('train', 'valid'))] == [*COLORS[:2], *COLORS[2:4]]
    assert [o.color for o in metrics.lines if o.name] == [COLORS[1]]

def test_rates_that_do_not_change_are_words():
    same, other = ([10.**-k]*8 for k in (1, 3))
    for rates, words in ({'lr_a': same, 'lr_b': other}, ['lr_a 0.1', 'lr_b 0.001']), ({}, []):
        h = History()
        h.columns.extend(8, {'train_loss': [1.]*8, **rates})
        panel, = picture(h).panels
        assert [o.name for o in panel.lines if o.name.startswith('lr')] == words and panel.xlabel == 'batch'
    h = history([1.]*4, lr=[.1, .1, .1, .2])
    assert len(picture(h).panels) == 2

def test_the_curve_ends_at_the_mean_that_its_legend_claims():
    "A line fitted there ended at 0.68 to 1.87 of it"
    for seed in range(100):
        r = random.Random(seed)
        per, epochs, noise = r.choice([10, 20, 50, 200]), r.choice([1, 2, 5, 12, 40]), r.choice([.05, .2, .4])
        n, floor = per*epochs + r.randrange(per), 10**r.uniform(-3, 1)
        losses = [floor*(1 + 3*math.exp(-i/n*r.uniform(3, 4)))*r.lognormvariate(0, noise) for i in range(n)]
        env = Envelope()
        env.extend(losses, [per*(e + 1) for e in range(epochs)])
        _, ys, words = env.smooth()
        last = losses[-int(re.search(r'±(\d+)', words)[1]) - env.size:] if words else losses[-1:]
        assert .95 < ys[-1]/np.mean(last) < 1.05, (seed, words)

def test_curves_beyond_the_eighth_have_dashes():
    "No two are drawn alike, in SVG, and in matplotlib"
    assert len({*STYLES}) == len(STYLES) == 4*len(COLORS)
    h = history([1.]*60, [1., .9], metrics={f'valid_city_{k}_loss': [.1*k, .1*k + .01] for k in range(11)})
    chart = picture(h)
    valid = [o for o in chart.panels[0].lines if o.name.startswith('valid')]
    assert len(valid) == 12 and len({(o.color, o.dash) for o in valid} - {(COLORS[0], '')}) == 12
    p = Panel(0, 0, 400, 40, [Line([0, 400], [.5, .5], COLORS[0], dash='7 4', width=2.)], (0, 400), (0, 1), None,
              yticks=[])
    drawn = Chart(400, 40, [p])
    assert 'stroke-dasharray="7 4"' in drawn.svg() and drawn.figure().axes[0].lines[0].is_dashed()

def test_marks_are_whole():
    h = history([1. + i % 2 for i in range(100)], [.5, 3.], metrics={'valid_accuracy': [0., 1.]})
    drawn = Drawn(picture(h).svg())
    inside = [any(left + 3 <= x <= right - 3 and top + 3 <= y <= bottom - 3
                  for left, top, right, bottom in drawn.frames()) for c in COLORS for x, y in drawn.dots(c)]
    assert len(inside) == 4 and all(inside)

def test_numbers_of_the_table_are_short_and_do_not_mislead():
    "1e30 had 36 characters, and an accuracy of .99996 was 1.0000"
    h = History()
    values = [1e30, -1e30, 1e7, 9999999., -0., .99996, .999999999, 1., 1.00001, 1e-30, math.nan, -math.inf]
    for v in values: h.epoch_rows.append({'epoch': 0, 'valid_x': v})
    assert [row[1] for row in h.lines()[1:]] == [
        '1.000e+30', '-1.000e+30', '1.000e+07', '9999999', '0.0000', '0.9999', '0.9999', '1.0000', '1.0000',
        '1.000e-30', 'nan', '-inf']

def test_notes_stay_inside_their_panel():
    "Names of metrics that are not drawn ran into the losses"
    metrics = {f'{side}_city_{k}_accuracy': [.1, .2, .3] for k in range(14) for side in ('train', 'valid')}
    metrics |= {f'valid_city_{k}_loss': [.1, .2, .3] for k in range(14)}
    panel, *_ = picture(history([1.]*60, [1., .9, .8], metrics=metrics)).panels
    note, = (o.name for o in panel.lines if o.name.startswith('not drawn'))
    assert note == 'not drawn: valid_city_11_loss and 4 more'
    assert ImageFont.truetype(FONT, SIZE).getlength(note) <= panel.width - 12

def test_names_and_numbers_beside_axes_have_room():
    "A view that begins late had 'batch3000'; numbers of metrics that hardly change reached into the next panel"
    metrics = {f'valid_m{k}': [10.**-k*(1 + e/1e6) for e in range(3)] for k in range(6)}
    h, font = history([1.]*4200, [1., .9, .8], metrics=metrics), ImageFont.truetype(FONT, SIZE)
    for first in 0, 2799, 2999:
        chart = Plot(first).chart(h.plot_data())
        words = Drawn(chart.svg()).words
        for p in chart.panels:
            beside = [font.getlength(o[2]) for o in words if o[0] == round(p.left - 5) and p.top < o[1] < p.bottom + 5]
            assert len(beside) > 1 and max(beside) < 67
            below = [o for o in words if o[1] == round(p.bottom + 17) and p.left - 9 < o[0] < p.right + 9]
            if p.below: assert below[-1][2] == 'batch' and all(
                o[0] - font.getlength(o[2])/2 > below[-1][0] for o in below[:-1])

def test_a_warning_of_nan_names_the_line_that_called():
    x = torch.ones(8, 1)
    learn = Learner(torch.nn.Linear(1, 1), [(x, x*math.nan)], loss_fn=torch.nn.functional.mse_loss, device='cpu',
                    display=False)
    with pytest.warns(RuntimeWarning, match='train_loss is nan in epoch 0') as seen: learn.fit(1)
    assert [o.filename for o in seen if 'is nan in' in str(o.message)] == [__file__]


# What it looks like

def test_numbers_of_two_curves_that_are_cut_off_do_not_lie_on_each_other():
    "In `lr_find`, those of the raw and of the smoothed losses"
    lrs = [10**(-7 + .08*i) for i in range(100)]
    curve = LRCurve(1e-7, 10., 100, lrs=lrs, losses=[1 - .004*i for i in range(88)] + [50.*i for i in range(1, 13)])
    assert [o for o in Drawn(curve.chart().svg()).texts() if o[0] == '▲'] == ['▲ 600']

def test_a_curve_outside_does_not_run_along_the_frame():
    line = Line(range(8), [.5, 2., 3., 2., .5, 9., -9., -9.], COLORS[0], may_leave=True)
    chart = Chart(120, 120, [Panel(10, 5, 100, 100, [line], (0, 7), (0., 1.))])
    inner, = (o for o in ET.fromstring(chart.svg()) if o.tag.endswith('}svg'))      # which clips what is in it
    assert inner.get('viewBox') == '10 5 100 100' and inner[0].get('stroke') == COLORS[0]
    image = Image.open(io.BytesIO(chart.png()[0])).convert('RGB')
    assert not lit(image, COLORS[0], (25, 1, 50, 9)) and lit(image, COLORS[0], (10, 6, 25, 55))

def test_one_huge_value_does_not_change_the_curve_elsewhere():
    for huge in 1e20, -1e20, 1e299, 1e308, math.inf:
        for at in 0, 60, 200:
            values = [.5]*201
            values[at] = huge
            res = smooth(values)
            assert res[at - 100] == .5 and all(min(.5, huge) <= v <= max(.5, huge) for v in res if v == v)

@pytest.mark.parametrize('huge', [1e308, -1e308, 5e-324])
def test_a_run_that_explodes_can_be_drawn(huge):
    losses = [1.]*40
    losses[5] = losses[30] = huge
    chart = picture(history(losses, [1., huge]))
    chart.png()
    assert not re.search('inf|nan', chart.svg().replace('nan from', ''))
    history(losses).plot()
    low, high = limits([1e300, 1., 1.], (), True)
    assert 0 < low < 1 < 1e299 < high < math.inf and len(ticks(low, high, is_log=True)) > 1

def test_numbers_at_the_axes_differ_and_do_not_overlap():
    "In one notation, and right within rounding"
    r, font = random.Random(0), ImageFont.truetype(FONT, SIZE)
    for _ in range(400):
        low = r.choice([0., -1., 1.])*10**r.uniform(-7, 7)
        is_log, whole = r.random() < .3, r.random() < .3
        low, width = abs(low) or 1e-3 if is_log else low, 10**r.uniform(-4, 6)
        xlim = (low, low*(1 + width)) if is_log else (low, low + width*(abs(low) or 1.))
        panel = Panel(54, 20, r.choice([244, 534]), r.choice([28, 60, 180]), [], xlim, xlim, n_ticks=r.choice([3, 5]),
                      is_log=is_log, ylog=is_log, whole=whole)
        for k, found in enumerate(panel.ticks()):
            words = [label for _, label in found]
            assert len({*words}) == len(words), (xlim, words)
            for v, label in found:
                assert float(label.replace('k', 'e3')) == pytest.approx(v, rel=.006, abs=1e-12*abs(xlim[1])), (v, label)
            for mark in 'ek': assert len({mark in o for v, o in found if v}) <= 1, words
            at = [p[k] for v, _ in found for p in panel.place([v if k == 0 else xlim[0]], [v if k else xlim[0]])]
            room = [font.getlength(o) if k == 0 else SIZE*.75 for o in words]
            for a, b, c, d in zip(at, at[1:], room, room[1:]): assert abs(b - a) > (c + d)/2, (xlim, words)

def test_a_single_point_is_visible_and_what_is_not_drawn_stretches_no_axis():
    h = history([1.]*4, [.5], metrics={'train_accuracy': [.2], 'valid_accuracy': [.9]})
    h.valid_rows[0]['valid_accuracy'] = math.nan
    chart = picture(h)
    panel = chart.panels[1]
    (x, y), = panel.place([2.5], [.2])
    color = next(o.color for o in panel.lines if o.ys == [.2])
    assert any(abs(a - x) < .1 and abs(b - y) < .1 for a, b in Drawn(chart.svg()).dots(color))
    image = Image.open(io.BytesIO(chart.png()[0])).convert('RGB')
    assert image.getpixel((round(2*x), round(2*y) - 4)) != (255, 255, 255)
    assert [o for o in h.plot().axes[1].lines if list(o.get_ydata()) == [.2] and o.get_marker() == 'o']
    rates = History()
    rates.columns.extend(9, {'train_loss': [1.]*9, **{f'lr_{k}': [*[10.**-k]*8, 10.**-5] for k in range(8)}})
    panel = picture(rates).panels[1]
    assert len(panel.lines) == 6 and panel.ylim[0] > -.3 and [o for _, o in panel.yticks] == ['1e-5', '1e0']

# The best epoch

def overfit(n=20):
    h, train, valid = History(), [1., .6, .4, .3, .2, .1, .06], [1.1, .8, .7, .75, .8, .86, .94]
    for e, (t, v) in enumerate(zip(train, valid)):
        h.columns.extend(n, {'train_loss': [t*(1 + i/100) for i in range(n)], 'lr': [.1]*n})
        row = {'valid_loss': v, 'valid_accuracy': 1 - v/2}
        h.valid_rows.append({'batch': h.n_steps, 'epoch': e, 'step': (e + 1)*n, **row})
        h.add_epoch({'epoch': e, 'train_loss': t, **row, 'lr': .1, 'time_s': 1.})
    return h

def rings(panel): return [(*o.xs, *o.ys) for o in panel.lines if o.mark == '○']

def hairlines(panel):
    return [(o.xs[0], o.end) for o in panel.lines if o.color == GREY and len(o.xs) == 2 and o.xs[0] == o.xs[1]]

def lit(image, color, box, far=30):
    "Where pixels of a colour are in a box, on the page"
    goal = bytes.fromhex(color[1:])
    left, top, right, bottom = (round(2*o) for o in box)
    return [(x/2, y/2) for x in range(left, right) for y in range(top, bottom)
            if max(abs(a - b) for a, b in zip(image.getpixel((x, y)), goal)) < far]

def test_the_best_epoch_is_where_its_value_is():
    "A ring around the point, a line through all panels, both at batch 60 and a loss of 0.7: pixels map back to them"
    chart = picture(h := overfit())
    losses, metrics = chart.panels
    image = Image.open(io.BytesIO(chart.png()[0])).convert('RGB')
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
    assert 'best 0.7 · epoch 2' in words and 'since then: valid +34 %, train −85 %' in words
    assert h.latest.monitor == ('valid_loss', 'min') and not rings(metrics)

def test_a_monitored_metric_has_the_ring():
    h = overfit()
    h.latest.monitor = 'valid_accuracy', 'max'
    losses, metrics = picture(h).panels
    assert rings(metrics) == [(60, 1 - .7/2)] and not rings(losses) and losses.shade is None
    assert hairlines(losses) == [(60, 'best valid_accuracy 0.65 · epoch 2')]
    h.latest.kept = h.epoch_rows[4]     # weights were restored, of another epoch
    assert hairlines(picture(h).panels[0])[0][0] == 100

@pytest.mark.parametrize('losses', [[8.4e9, 9e9, 2e11], [8.4e9, math.nan, math.nan]])
def test_a_diverged_fit_praises_no_best(losses):
    h = History()
    for e, v in enumerate(losses):
        h.columns.extend(6, {'train_loss': [2.3, 40., 3e3, *[2*v]*3] if e == 0 else [v]*6})
        h.valid_rows.append({'batch': h.n_steps, 'epoch': e, 'valid_loss': v})
        h.epoch_rows.append({'epoch': e, 'train_loss': v, 'valid_loss': v})
        h.ends.append(h.n_steps)
    assert h.best() == 0 and h.marked() is None and '*' not in repr(h) and '<b>' not in h.html()
    chart = picture(h)
    assert 'best' not in chart.svg() + chart.alt and not rings(chart.panels[0])

def test_epochs_have_their_numbers_below_their_last_batches():
    chart = picture(overfit())
    rates = chart.panels[0]     # or what is lowest
    drawn = [o for o in Drawn(chart.svg()).words if o[1] > rates.bottom + 25 and o[0] < 600]
    assert [o[2] for o in drawn] == ['epoch', *'0123456']
    assert [o[0] for o in drawn[1:]] == pytest.approx([x for x, _ in rates.place(range(20, 141, 20), [.1]*7)], abs=.6)

def test_what_the_pointer_shows_are_the_recorded_values():
    h = overfit()
    panel = picture(h).panels[0]
    values = h.steps['train_loss']
    for x, text in panel.hover:
        epoch, batch = map(int, re.match(r'epoch (\d+), batch (\d+)\n', text).groups())
        shown = {k: float(v) for k, v in re.findall(r'(train_loss|valid_loss|lr) ([\d.e-]+)', text)}
        at = int(re.search(r'after batch (\d+):', text)[1])
        assert x == batch and epoch == (batch - 1)//20, text
        assert at == min(range(20, 141, 20), key=lambda o: abs(o - batch)), text
        valid = h.valid_rows[at//20 - 1]['valid_loss']
        real = {'train_loss': values[batch - 1], 'lr': .1, 'valid_loss': valid}
        assert shown == pytest.approx(real, rel=5e-4)
    assert 30 <= len(panel.hover) <= 45 and panel.hover[-1][0] == 140

# Linear or logarithmic

def test_log_is_what_was_asked_for():
    "The same values on the other axis; where a loss is not above 0, an error says so, and there is no switch"
    h = overfit()
    assert not picture(h).panels[0].ylog and 'log' in Drawn(picture(h, log=True).svg()).texts()
    ax = h.plot(log=True).axes[0]
    assert ax.get_yscale() == 'log' and h.plot(log=False).axes[0].get_yscale() == 'linear'
    chart = Plot().final(h.plot_data())
    assert chart.html().count('aria-label="logarithmic"') == 1 and chart.other.panels[0].ylog
    assert [x for x, _ in chart.panels[0].hover] == [x for x, _ in chart.other.panels[0].hover]
    p = chart.other.panels[0]
    image = Image.open(io.BytesIO(chart.other.png()[0])).convert('RGB')
    for row, end in zip(h.epoch_rows, h.ends):
        y = p.bottom - p.height*math.log(row['valid_loss']/p.ylim[0])/math.log(p.ylim[1]/p.ylim[0])
        x = p.left + p.width*(end - p.xlim[0])/(p.xlim[1] - p.xlim[0])
        assert image.getpixel((round(2*x), round(2*y))) == tuple(bytes.fromhex(COLORS[1][1:]))
    h.columns.extend(1, {'train_loss': [-.5], 'lr': [.1]})
    with pytest.raises(ValueError, match=r'log=True needs losses above 0, and the lowest is -0.5: .*log=False'):
        h.plot(log=True)
    assert Plot().final(h.plot_data()).other is None

def test_the_box_and_its_label_are_of_their_own_picture():
    linear, log = Plot().final(overfit().plot_data()), Plot().final(history([1e3*.9**i for i in range(90)]).plot_data())
    pages = linear.html(), log.html()
    assert [re.findall('(?:data-axis|aria-label)="(.*?)"', o) for o in pages] == [['logarithmic']*2, ['linear']*2]
    for o in pages: assert o.count('class="tnb-chart"') == o.count('type="checkbox"') == 1 and o.endswith('</div>')

def test_the_picture_has_exactly_the_colours_of_its_legend_and_no_words_on_each_other():
    chart = picture(overfit(), log=True)
    image = Image.open(io.BytesIO(chart.png()[0])).convert('RGB')
    known = {color for _, color in image.getcolors()}
    named = [o for p in chart.panels for o in p.lines if o.name]
    assert named and all(tuple(bytes.fromhex(o.color[1:])) in known for o in named)
    drawn = Drawn(chart.svg())
    for o in named: assert (o.mark, o.color) in [(word[2], word[4]) for word in drawn.words]
    height = {text: y for _, y, text, *_ in drawn.words}
    said = [height[o] for o in height if o.startswith(('best', 'since then'))]
    assert len(said) == 2 and abs(said[1] - said[0]) == 15 and height['log'] < chart.panels[0].top

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
