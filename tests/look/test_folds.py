"Folds are scikit-learn's, by their definition; a model that has seen another fold is refused before it trains"
from collections import Counter

import pytest, torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from common import make_learner, problem
from trainer_nb.all import LambdaHook, accuracy, cross_validate, folds

def test_folds_are_even_and_follow_from_the_seed():
    "nbs/data/05_split holds that each sample is validated once, and that groups stay together"
    assert [len(valid) for _, valid in folds(torch.arange(10), 3)] in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    y = torch.tensor([0]*17 + [1]*8 + [2]*5)[torch.randperm(30, generator=torch.Generator().manual_seed(3))]
    for _, valid in folds((torch.arange(30), y), 4, stratify=True):
        counts = Counter(valid[1].tolist())
        for c, n in (0, 17), (1, 8), (2, 5): assert counts[c] in (n//4, -(-n//4))
        assert len(valid[1]) in (7, 8)
    with pytest.warns(UserWarning, match='a class has 5 samples for 6 folds'): folds((y, y), 6, stratify=True)
    groups = ['large']*20 + [f'g{i % 7}' for i in range(40)]
    assert {'large'} in [{groups[i] for i in valid} for _, valid in folds([*range(60)], 4, groups=groups)]
    def first(**kwargs): return next(iter(folds(torch.arange(20), **kwargs)))[1].tolist()
    before = torch.get_rng_state()
    assert first() == first(seed=0) != first(seed=1) and torch.equal(before, torch.get_rng_state())
    train, valid = next(folds(TensorDataset(y), 4))
    assert isinstance(train, Subset) and len(valid) == 8
    train, valid = next(folds((y, y.numpy()), 4))
    assert valid[0].tolist() == valid[1].tolist()

X, Y = problem(60)

def make(train, valid, model=None, **kwargs):
    return make_learner(model or nn.Linear(4, 3), train, valid, metrics=[accuracy], bs=16, **kwargs)

def test_rows_are_of_the_epoch_whose_weights_were_restored():
    "nbs/look/16_folds holds mean and deviation against the learners' own values"
    def worse(train, valid):        # with each epoch
        learn = make(train, valid)
        learn.add_hook(LambdaHook(after_backward=lambda learn: [p.grad.neg_() for p in learn.model.parameters()]))
        return learn
    cv = cross_validate(worse, (X, Y), 2, n_epochs=3, keep_best='valid_loss')
    for learn, row in zip(cv.learners, cv.rows, strict=True):
        assert row['valid_loss'] == learn.history.epochs['valid_loss'][0] < learn.history.epochs['valid_loss'][2]
        assert row == pytest.approx(learn.validate(), abs=1e-6)
    assert cv._repr_html_().count('<tr>') == 5

def test_a_model_of_another_fold_is_refused():
    "Also in a new wrapper, before it trains; what is frozen learns nothing"
    fits, body = [], nn.Linear(4, 4)
    def tuned(train, valid):
        fits.append(1)
        return make(train, valid, nn.Sequential(body, nn.Linear(4, 3)))
    with pytest.raises(ValueError, match='the model of fold 1 is that of fold 0.*make the model inside'):
        cross_validate(tuned, (X, Y), n_epochs=1)
    assert len(fits) == 2
    body.requires_grad_(False)
    assert len(cross_validate(tuned, (X, Y), 2, n_epochs=1).learners) == 2
    learn = make((X, Y), (X, Y))
    learn.fit(1)
    for f, text in (lambda *o: learn, 'is trained already'), (lambda train, _: make(train, None), 'no valid_dl'):
        with pytest.raises(ValueError, match=text): cross_validate(f, (X, Y), n_epochs=1)

def test_folds_that_are_done_outlast_an_interrupt():
    "and the one that was interrupted goes on from its batch; nbs/look/16_folds has an error"
    def stop(learn):
        if len(made) == 3 and learn.state.optimizer_step == 2: learn.stop()
    made = []
    def seeded(train, valid):
        torch.manual_seed(len(made))
        made.append(make(train, valid))
        if stops: made[-1].add_hook(LambdaHook(after_step=stop))
        return made[-1]
    stops = True
    cv = cross_validate(seeded, (X, Y), 4, n_epochs=2)
    assert cv.learners == made[:2] and 'resume() trains the rest' in repr(cv) and 'resume()' in cv._repr_html_()
    assert cv.resume() is cv and len(cv.learners) == 4 and len(made) == 4
    assert 'resume' not in repr(cv)
    made, stops, rows = [], False, cv.rows
    assert cross_validate(seeded, (X, Y), 4, n_epochs=2).rows == rows
