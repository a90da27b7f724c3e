"""Several validation sets by name: the numbers are those of a plain loop over each,
and a pass goes on from any batch of any set"""
from functools import partial

import pytest, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from common import (
    Noisy, Unsized, check_resume, make_learner, make_model, plain_loop, problem, same, stop_when, told, weights
)
from trainer_nb.save.checkpoint import Checkpoint
from trainer_nb.data import end_workers
from trainer_nb.show.display import Display
from trainer_nb.save import EarlyStopping
from trainer_nb.loop.hooks import CancelStep, LambdaHook
from trainer_nb.data.loaders import ValidSets
from trainer_nb.loop.metrics import Metric, accuracy


class Squares:
    "A metric that is no mean over batches: the root of the mean square of the right logits"
    def reset(self): self.total, self.n = torch.zeros(()), 0
    def update(self, pred, targ):
        self.total, self.n = self.total + (pred.gather(1, targ[:, None])**2).sum(), self.n + len(targ)
    def compute(self): return (self.total/self.n)**.5

def stock(n, seed, cls=Noisy, bs=4, **kwargs): return DataLoader(cls(*problem(n, seed)), bs, shuffle=True, **kwargs)

KINDS = {
    'stock': lambda: {'clean': stock(14, 2), 'noisy': stock(9, 3)},
    'one generator': lambda: (lambda g: {'clean': stock(14, 14, generator=g), 'noisy': stock(9, 9, generator=g)})(
        torch.Generator().manual_seed(3)),
    'workers': lambda: {'clean': stock(14, 2), 'noisy': stock(9, 3, num_workers=1)},
}

def make(valid, metrics=(accuracy,), **kwargs):
    torch.manual_seed(0)
    model = make_model()
    return make_learner(model, DataLoader(TensorDataset(*problem()), 6, shuffle=True), valid, metrics=[*metrics],
                        optim=torch.optim.SGD(model.parameters(), lr=.1), **{'seed': 7, **kwargs})

def plain_values(model, dls):
    "What a plain loop over each set says: name of the set → (mean loss, accuracy, root of the mean square, samples)"
    model.eval()
    found = {}
    with torch.no_grad():
        for name, dl in dls.items():
            pairs = [(model(x), y) for x, y in dl]
            out, y = (torch.cat(o) for o in zip(*pairs))
            squares = out.gather(1, y[:, None]).square().mean().sqrt()
            values = F.cross_entropy(out, y), (out.argmax(1) == y).float().mean(), squares
            found[name] = *(o.item() for o in values), len(y)
    model.train()
    return found

def columns(found):
    "The same, as `learn.validate` says it"
    names, total = ('loss', 'accuracy', 'Squares'), sum(o[3] for o in found.values())
    res = {f'valid_{name}': sum(o[i]*o[3] for o in found.values())/total for i, name in enumerate(names)}
    return res | {f'valid_{s}_{name}': o[i] for s, o in found.items() for i, name in enumerate(names)}

def by_hand(valid, n_epochs=2):
    torch.manual_seed(0)
    model, rows = make_model(), []
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    train = DataLoader(TensorDataset(*problem()), 6, shuffle=True)
    torch.manual_seed(7)
    for _ in range(n_epochs):
        plain_loop(model, opt, train)
        rows.append(columns(plain_values(model, valid)))
    return weights(model), rows

@pytest.mark.parametrize('kind', KINDS)
def test_each_set_has_its_columns_with_the_numbers_of_a_plain_loop(kind):
    expected, rows = by_hand(KINDS[kind]())
    learn = make(KINDS[kind](), [accuracy, Squares()])
    h = learn.fit(2)
    assert same(weights(learn.model), expected)
    for got in h.epochs, h.valids:
        assert [{k: v[i] for k, v in got.items() if k.startswith('valid_')}
                for i in range(2)] == [pytest.approx(o) for o in rows]
    assert [o for o in h.epochs if o.startswith('valid_')][:3] == ['valid_loss', 'valid_accuracy', 'valid_Squares']

def test_validate_takes_a_dict():
    learn = make(problem(20, 5), [accuracy, Squares()])
    sets = {'a': list(zip(*(o.split(4) for o in problem(14, 2)))), 'b': problem(9, 3)}
    expected = columns(plain_values(learn.model, {'a': sets['a'], 'b': [sets['b']]}))
    assert learn.validate(sets) == pytest.approx(expected)
    alone = {k.replace('_a_', '_'): v for k, v in expected.items() if '_a_' in k}
    assert learn.validate(problem(14, 2)) == pytest.approx(alone)
    learn.valid_dl = sets       # set between two fits, as a loader is
    learn.fit(1)
    assert isinstance(learn.valid_dl, ValidSets) and len(learn.valid_dl) == 5
    assert 'valid_b_accuracy' in learn.history.epochs
    whole = torch.cat([learn.predict(o) for o in (sets['a'], sets['b'])])
    assert torch.equal(learn.predict(learn.valid_dl), whole) and learn.validate() == learn.validate(sets)

def stop_in_validation(at, step=6):
    "In one of the passes: the first one of the second epoch"
    return stop_when(lambda learn: not learn.training and learn.valid_idx == at and learn.state.optimizer_step == step)

def check_sets(kind, ats, folder, step=6):
    for at in ats:
        learns = check_resume(lambda: make(kind(), [accuracy, Squares()]), folder/str(at), stop_in_validation(at, step),
                              n_epochs=3, valid_every=3)
        for o in learns: end_workers(o.valid_dl)

@pytest.mark.parametrize('kind, ats', [('stock', (2, 4, 5)), ('one generator', (5,)), ('workers', (6,))])
def test_a_pass_goes_on_from_any_batch_of_any_set(kind, ats, tmp_path): check_sets(KINDS[kind], ats, tmp_path)

def persistent(*which):
    "Their samples draw nothing: persistent workers have random states that nobody can put back"
    kept = {'num_workers': 1, 'persistent_workers': True}
    return {k: stock(n, n, TensorDataset, **(kept if k in which else {})) for k, n in (('clean', 14), ('noisy', 9))}

def test_persistent_workers_of_a_set_are_there_again_after_a_resume(tmp_path):
    "Each loader whose workers wait for the next pass draws no seed in it, and each one that has none yet draws one"
    with pytest.warns(match=r"valid_dl\['clean'\] .* workers"), pytest.warns(match=r"valid_dl\['noisy'\] .* workers"):
        check_sets(partial(persistent, 'clean', 'noisy'), [3], tmp_path)
    # in the first pass, where one has workers
    check_sets(partial(persistent, 'clean', 'noisy'), (2, 6), tmp_path, step=3)

def test_a_resume_names_the_set_whose_batches_are_read_again(tmp_path):
    "Also of loaders without a length; what is over, or did not begin, is not read; other sets are refused"
    def learner(*names):
        sets = KINDS['stock']()
        return make({k: Unsized(sets[k]) for k in names or sets})
    with told() as said: check_resume(learner, tmp_path, stop_in_validation(5, 4), n_epochs=2)
    assert [o.partition(' batches')[0] for o in said] == ["resume: valid_dl['noisy'] is a Unsized, whose first 1"]
    learner().fit(2, hooks=[stop_in_validation(5, 4), Checkpoint(tmp_path/'other')])
    with pytest.raises(ValueError, match='the loader has changed'):
        learner('noisy', 'clean').fit(2, hooks=[Checkpoint(tmp_path/'other')], resume=True)

def test_monitors_see_all_sets_and_each():
    learn = make({'a': problem(14, 2), 'b': problem(9, 3)},
                 hooks=[EarlyStopping(1, monitor='valid_b_loss', min_delta=10.)])
    h = learn.fit(5)
    assert len(h) == 2 and h.best() is not None
    for loss, a, b in zip(*(h.epochs[f'valid_{o}loss'] for o in ('', 'a_', 'b_'))):
        assert loss == pytest.approx((14*a + 9*b)/23)

def test_valid_first_valid_every_and_the_count_of_batches():
    seen, total = [], []
    def count(learn):
        if not learn.training: seen.append((learn.valid_idx, learn.n_batches))
    look = LambdaHook(after_step=count,
                      after_valid=lambda learn: total.append(learn.get_hook(Display).pace.total))
    learn = make({'a': problem(14, 2), 'b': problem(9, 3)}, bs=4, hooks=[look], display='text')
    h = learn.fit(2, valid_first=True)
    assert h.valids['step'] == [0, 4, 8] and seen == [(i, 7) for i in range(1, 8)]*3 and total == [8 + 3*7]*3
    h = learn.fit(1, valid_every=2)
    assert h.valids['step'][3:] == [10, 12] and len(seen) == 5*7

def test_a_recorded_mean_and_a_cancelled_step_belong_to_their_set():
    def look(learn):
        learn.record('size', float(len(learn.batch[1])), mean=True)
        if not learn.training and learn.valid_idx == 1: raise CancelStep
    learn = make({'a': problem(14, 2), 'b': problem(9, 3)}, bs=4, hooks=[LambdaHook(after_loss=look)])
    row = {k: v[0] for k, v in learn.fit(1).epochs.items()}
    assert row['valid_a_size'] == pytest.approx((4*4 + 4*4 + 2*2)/10)
    assert row['valid_b_size'] == pytest.approx((4*4 + 4*4 + 1)/9) and row['valid_size'] == pytest.approx((36 + 33)/19)

@pytest.mark.parametrize('valid, metrics, said', [
    ({'x': problem()}, [Metric(accuracy, 'x_loss')], 'two columns would be called valid_x_loss'),
    ({'a': problem(), 'a_b': problem()}, [Metric(accuracy, 'c'), Metric(accuracy, 'b_c')],
     "valid_a_b_c, with the validation sets 'a', 'a_b'"),
    ({}, [], 'an empty dict')])
def test_sets_whose_columns_would_collide_are_refused(valid, metrics, said):
    with pytest.raises((TypeError, ValueError), match=said): make(valid, metrics)
    with pytest.raises((TypeError, ValueError), match=said): make(None, metrics).validate(valid)
