"Back to a checkpoint in place: what follows is what followed then, bit for bit; a crash does not bring back the rest"
import random

import pytest, torch

from common import batches, digest, make_learner, shuffled
from trainer_nb.all import (
    EMA, SWA, Checkpoint, EarlyStopping, GradAccum, LambdaHook, OneCycle, compare
)
from trainer_nb.draw import Plot

def own_order(): return shuffled(generator=torch.Generator().manual_seed(5))

@pytest.mark.parametrize('make_dl, make_hooks', [
    (shuffled, lambda: [EMA(.9), OneCycle(.1)]), (shuffled, lambda: [GradAccum(3), SWA(2)]),
    (own_order, lambda: [EarlyStopping(patience=5)])])
def test_from_random_points(make_dl, make_hooks, tmp_path):
    "From each one the fit is repeated to its end"
    learn = make_learner(train_dl=make_dl(), valid_dl=batches(seed=2), hooks=make_hooks(), lr=.1)
    with learn.added_hooks(check := Checkpoint(tmp_path/'a', every=1, keep=1000)): learn.fit(3)
    expected, points = digest(learn), check.folder.manifests()
    for o in random.Random(1).choices([o for o in points if o['step'] < points[-1]['step']], k=4):
        torch.randn(7)
        learn.rewind(**{'step': o['step']} if o['in_epoch'] else {'epoch': o['epoch']}, folder=tmp_path/'a')
        assert learn.state.optimizer_step == o['step']
        learn.resume()
        assert digest(learn) == expected, o

def test_pictures_follow_to_another_way(tmp_path):
    "A comparison and a plot lose what had followed the checkpoint"
    learn, plot = make_learner(valid_dl=batches(seed=2), hooks=[Checkpoint(tmp_path/'a', keep=100)]), Plot()
    def drawn(plot): return plot.chart(learn.history.plot_data(), log=False).svg()
    learn.fit(3)
    look, _ = compare(learn), drawn(plot)
    learn.rewind(1)
    learn.fit(4, lr=.3)
    look.update()
    assert look.chart().svg() == compare(learn).chart().svg()
    assert drawn(plot) == drawn(Plot()) and 'rewound from batch 15' in drawn(plot)

def test_another_way_is_what_a_crash_resumes(tmp_path):
    "Though states of the first way are still there, and are longer"
    learn, again = (make_learner(hooks=[Checkpoint(tmp_path/'a', keep=10)]) for _ in range(2))
    learn.fit(5)
    learn.rewind(epoch=2)
    again.fit(2, resume=True)
    assert again.state.epoch == 2 and digest(again) == digest(learn)


def test_what_was_not_kept_is_refused(tmp_path):
    learn = make_learner(valid_dl=batches(seed=2), hooks=[Checkpoint(tmp_path/'a', keep=1, monitor=None)])
    learn.fit(3)
    before = digest(learn)
    for wrong in True, '3', 1:
        with pytest.raises((TypeError, ValueError), match='epoch'): learn.rewind(wrong)
    assert digest(learn) == before
    with pytest.raises(RuntimeError, match='in a fit'):
        learn.fit(1, hooks=[LambdaHook(before_step=lambda learn: learn.rewind(epoch=3))])
