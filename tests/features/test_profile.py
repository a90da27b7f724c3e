"Profile: it changes nothing, it measures what it says, and its parts are the whole"
import gzip, json

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, digest, make_learner, shuffled
from trainer_nb.all import AMP, CancelStep, GradAccum, GradClip, LambdaHook, Learner, Profile


class Clock:
    "Time that passes only where it is said to"
    now = 0.
    def __call__(self): return self.now
    def spend(self, t): self.now += t

@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for o in 'data.passes', 'loop.hooks', 'features.speed': monkeypatch.setattr(f'trainer_nb.{o}.perf_counter', clock)
    return clock

class Slow:
    "Batches that take a while"
    def __init__(self, clock, n, t): self.clock, self.n, self.t = clock, n, t
    def __len__(self): return self.n
    def __iter__(self):
        for b in batches(5*self.n):
            self.clock.spend(self.t)
            yield b

STEPS = {'do_step': ('forward and loss', 100), 'do_backward': ('backward', 200), 'do_opt_step': ('optimizer', 40),
         'do_zero_grad': ('gradients are cleared', 5)}
EVENTS = 'before_step', 'after_pred', 'after_loss', 'after_backward', 'after_step'

def timed(point, seconds):
    "A step of `Learner` that takes so long"
    def step(self, *args):
        self.clock.spend(seconds)
        return getattr(Learner, point)(self, *args)
    return step

Timed = type('Timed', (Learner,), {point: timed(point, seconds) for point, (_, seconds) in STEPS.items()})

def busy(clock):
    "2 seconds at each event, and 7 around each step"
    def around(learn, nxt):
        clock.spend(3)
        res = nxt()
        clock.spend(4)
        return res
    events = {o: lambda learn: clock.spend(2) for o in EVENTS}
    return LambdaHook(name='busy', **events, **dict.fromkeys(STEPS, around))

@pytest.mark.parametrize('skip, valid_every', [(5, None), (0, 3)])
def test_each_part_is_what_it_took(clock, skip, valid_every):
    "Over epochs and validation passes, too, which do not count"
    n_steps, profile = 20, Profile(20, skip)
    learn = Timed(nn.Linear(4, 3), Slow(clock, 8, 10), Slow(clock, 3, 1000), loss_fn=F.cross_entropy,
                  hooks=[busy(clock), profile], display=False)
    learn.clock = clock
    learn.fit(5, valid_every=valid_every)
    table = profile.table
    by_point = {o.point: o for o in table.rows}
    waiting, rest = by_point['waiting'].time_s, by_point['between'].time_s
    rows = {(o.point, o.what): o for o in table.rows if o.point not in ('waiting', 'between')}
    expected = {**{(p, what): t for p, (what, t) in STEPS.items()}, **{(p, 'busy'): 7 for p in STEPS},
                **{(p, 'busy'): 2 for p in EVENTS}}
    assert table.n_steps == n_steps and {o.calls for o in table.rows} == {n_steps}
    assert sum(map(table.share, {o.point for o in table.rows})) == pytest.approx(1)
    assert rest == pytest.approx(0, abs=1e-6)
    assert {k: o.time_s/n_steps for k, o in rows.items()} == pytest.approx(expected)
    # the batch after a validation pass was ready when the clock continued
    assert abs(waiting - 10*n_steps) <= (10 if valid_every is None else 70)
    assert table.time_s*n_steps == pytest.approx(sum(expected.values())*n_steps + waiting)

def skip_some(learn):
    if learn.training and learn.state.batch_idx == 2: raise CancelStep

def test_the_trace(tmp_path, capsys):
    "Two steps after the measured ones and one more, by name; all that changes nothing, with a cancelled batch, too"
    def run(*more):
        torch.manual_seed(0)
        hooks = GradAccum(2), GradClip(1.), AMP(), LambdaHook(after_loss=skip_some)
        learn = make_learner(valid_dl=shuffled(seed=2), hooks=[*hooks, *more], seed=1)
        learn.fit(3)
        return digest(learn)
    profile = Profile(3, 1, tmp_path/'new'/'trace.json.gz', n_traced=2)
    assert run() == run(profile)
    with gzip.open(tmp_path/'new'/'trace.json.gz') as f: names = [o.get('name') for o in json.load(f)['traceEvents']]
    assert names.count('forward and loss') == 2 and profile.table.n_steps == 3
    make_learner(hooks=[Profile(3, 1, tmp_path/'none.json')]).fit(1)
    assert 'no trace' in capsys.readouterr().out and not (tmp_path/'none.json').exists()
