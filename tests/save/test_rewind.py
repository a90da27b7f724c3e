"Back to a checkpoint in place: what follows is what followed then, bit for bit; a crash does not bring back the rest"
import random

import pytest, torch, torch.nn.functional as F

from common import batches, digest, make_learner, shuffled
from trainer_nb.all import (
    EMA, SWA, Checkpoint, EarlyStopping, GradAccum, JSONLLogger, LambdaHook, Learner, OneCycle, compare
)
from trainer_nb.draw import Plot


def plain(): return make_learner(valid_dl=batches(seed=2)), ()

def scheduled(): return make_learner(valid_dl=batches(seed=2), hooks=[EMA(.9)]), [OneCycle(.1)]

def accumulated(): return make_learner(valid_dl=batches(seed=2), hooks=[GradAccum(3), SWA(2)]), ()

def own_generator(): return make_learner(train_dl=shuffled(generator=torch.Generator().manual_seed(5))), ()

def stopped_early(): return make_learner(valid_dl=batches(seed=2), hooks=[EarlyStopping(patience=5)], lr=.1), ()

@pytest.mark.parametrize('kind', [plain, scheduled, accumulated, own_generator, stopped_early])
def test_from_random_points(kind, tmp_path):
    "Twenty in all; from each one the fit is repeated to its end"
    torch.manual_seed(0)
    learn, hooks = kind()
    learn.add_hook(Checkpoint(tmp_path/'a', every=1, keep=1000))
    learn.fit(3, hooks=hooks)
    expected, rng = digest(learn), random.Random(kind.__name__)
    points = learn.get_hook('Checkpoint').folder.manifests()
    learn.remove_hook('Checkpoint')
    for o in rng.choices([o for o in points if o['step'] < points[-1]['step']], k=4):
        torch.randn(rng.randrange(100))
        where = {'step': o['step']} if o['in_epoch'] else {'epoch': o['epoch']}
        with learn.added_hooks(*hooks):
            learn.rewind(**where, folder=tmp_path/'a')
            assert learn.state.optimizer_step == o['step']
            assert learn.state.epoch in (o['epoch'], o['epoch'] + o['in_epoch'])
            learn.resume()
        assert digest(learn) == expected, o

def test_looks_follow_to_another_way(tmp_path):
    "A comparison and a plot kept what had followed the checkpoint"
    learn, _ = plain()
    learn.add_hook(Checkpoint(tmp_path/'a', every=1, keep=100))
    learn.fit(3)
    look, plot = compare(learn), Plot()
    look.update()
    plot.chart(learn.history.plot_data(), log=False)
    learn.rewind(1)
    learn.opt.param_groups[0]['lr'] = .3
    learn.fit(4)
    look.update()
    new = compare(learn)
    assert look.chart().svg() == new.chart().svg()
    data = learn.history.plot_data()
    drawn = plot.chart(data, log=False).svg()
    assert drawn == Plot().chart(data, log=False).svg()
    n = learn.history.ends[0]
    assert learn.history.flags == [[n, f'rewound from batch {3*n}']]
    assert learn.history.plot() and f'rewound from batch {3*n}' in drawn

def test_another_way_is_what_a_crash_resumes(tmp_path):
    "Though states of the first way are still there, and are longer"
    learn = make_learner(hooks=[Checkpoint(tmp_path/'a', keep=10), JSONLLogger(tmp_path/'log.jsonl')])
    learn.fit(5)
    learn.rewind(epoch=2)
    again = make_learner(hooks=[Checkpoint(tmp_path/'a', keep=10)])
    again.fit(2, resume=True)
    assert again.state.epoch == 2 and digest(again) == digest(learn)
    def fail(learn):
        if learn.state.batch_idx == 2: raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError): learn.fit(2, hooks=[LambdaHook(after_step=fail)])
    again.fit(3, resume=True)
    assert again.state.epoch == 3

def test_a_kept_point_is_enough(tmp_path):
    learn = make_learner(valid_dl=batches(seed=2), hooks=[Checkpoint(tmp_path/'a', keep=1, monitor=None)])
    learn.fit(3)
    with pytest.raises(ValueError, match=r'no checkpoint has epoch=1\. There are epoch=3, step=15;'):
        learn.rewind(1)
    expected = digest(learn)
    learn.fit(1)
    with pytest.raises(ValueError, match='There are epoch=4'): learn.rewind(3)
    learn.load(tmp_path/'a')
    assert digest(learn) != expected and learn.state.epoch == 4

def test_refusals(tmp_path):
    learn = make_learner(hooks=[Checkpoint(tmp_path/'a')])
    with pytest.raises(FileNotFoundError, match='no checkpoint in'): learn.rewind(epoch=1)
    learn.fit(1)
    before = digest(learn)
    for wrong in 0, True, 1.5, '3', 2:
        with pytest.raises((TypeError, ValueError), match='epoch'): learn.rewind(wrong)
    def rewind(learn): learn.rewind(epoch=1)
    other = Learner(torch.nn.Linear(4, 3), batches(), loss_fn=F.cross_entropy, display=False)
    with pytest.raises(ValueError, match='different model'): other.rewind(1, folder=tmp_path/'a')
    assert digest(learn) == before
    with pytest.raises(RuntimeError, match='called in a fit'): learn.fit(1, hooks=[LambdaHook(before_step=rewind)])
    assert other.state.epoch == 0

def test_of_another_folder(tmp_path):
    "A learner without the hook, and one whose hook has another folder, take the newest run there"
    make_learner(hooks=[Checkpoint(tmp_path/'a')]).fit(2)
    for hooks in [], [Checkpoint(tmp_path/'b')]:
        learn = make_learner(hooks=hooks)
        learn.rewind(epoch=1, folder=tmp_path/'a')
        assert learn.state.epoch == 1 and not (tmp_path/'b').exists()
