"Profile: it changes nothing, it measures what it says, and its parts are the whole"
import gzip, json

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, digest, make_learner, shuffled
from trainer_nb.all import AMP, CancelStep, GradAccum, GradClip, LambdaHook, Learner, Profile


STEPS = {'do_step': ('forward and loss', 100), 'do_backward': ('backward', 200), 'do_opt_step': ('optimizer', 40),
         'do_zero_grad': ('gradients are cleared', 5)}

def test_each_part_is_what_it_took(monkeypatch):
    "On a clock: 7 seconds around each step, 10 for a batch; over epochs and validation passes, too, which do not count"
    now, profile = [0.], Profile(20, skip=0)
    def spend(t): now[0] += t
    for o in 'data.passes', 'loop.hooks', 'features.speed':
        monkeypatch.setattr(f'trainer_nb.{o}.perf_counter', lambda: now[0])
    def timed(point, t):
        def step(self, *args):
            spend(t)
            return getattr(Learner, point)(self, *args)
        return step
    def around(learn, nxt):
        spend(3)
        res = nxt()
        spend(4)
        return res
    class Slow:
        def __len__(self): return 8
        def __iter__(self):
            for b in batches(40):
                spend(10)
                yield b
    busy = LambdaHook(name='busy', after_step=lambda learn: spend(2), **dict.fromkeys(STEPS, around))
    timed_learner = type('Timed', (Learner,), {point: timed(point, t) for point, (_, t) in STEPS.items()})
    learn = timed_learner(nn.Linear(4, 3), Slow(), batches(15), loss_fn=F.cross_entropy, hooks=[busy, profile],
                          display=False)
    learn.fit(5, valid_every=3)
    table = profile.table
    rows = {(o.point, o.what): o.time_s/20 for o in table.rows if o.point not in ('waiting', 'between')}
    waiting, between = (next(o.time_s for o in table.rows if o.point == k) for k in ('waiting', 'between'))
    expected = {**{(p, what): t for p, (what, t) in STEPS.items()}, **{(p, 'busy'): 7 for p in STEPS},
                ('after_step', 'busy'): 2}
    assert rows == pytest.approx(expected) and between == pytest.approx(0, abs=1e-6)
    # the batch after a validation pass was ready when the clock continued
    assert 130 <= waiting <= 200 and table.n_steps == 20 and {o.calls for o in table.rows} == {20}
    assert table.time_s*20 == pytest.approx(sum(expected.values())*20 + waiting)

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
