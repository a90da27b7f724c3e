"Several validation sets by name: the numbers are those of a plain loop over each, also after a stop in one of them"
import pytest, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from common import (
    Noisy, Unsized, check_resume, make_learner, make_model, plain_loop, problem, same, shuffled, stop_when, told,
    weights
)
from trainer_nb.all import CancelStep, Checkpoint, LambdaHook, Metric, accuracy
from trainer_nb.data import end_workers
from trainer_nb.data.loaders import ValidSets

class Squares:
    "A metric that is no mean over batches: the root of the mean square of the right logits"
    def reset(self): self.total, self.n = torch.zeros(()), 0
    def update(self, pred, targ):
        self.total, self.n = self.total + (pred.gather(1, targ[:, None])**2).sum(), self.n + len(targ)
    def compute(self): return (self.total/self.n)**.5

SIZES = {'clean': 14, 'noisy': 9}

def sets(cls=Noisy, **kwargs): return {k: DataLoader(cls(*problem(n, n)), 4, True, **kwargs) for k, n in SIZES.items()}

KINDS = {
    'stock': sets,
    'one generator': lambda: sets(generator=torch.Generator().manual_seed(3)),
    # whose samples draw nothing: persistent workers have random states that nobody can put back
    'persistent': lambda: sets(TensorDataset, num_workers=1, persistent_workers=True)}

def start():
    torch.manual_seed(0)
    model = make_model()
    return model, torch.optim.SGD(model.parameters(), lr=.1), shuffled(bs=6)

def make(valid, metrics=(accuracy, Squares()), **kwargs):
    model, opt, dl = start()
    return make_learner(model, dl, valid, metrics=[*metrics], optim=opt, seed=7, **kwargs)

def columns(model, dls):
    "What a plain loop over each set says: columns of each set, and means over all samples"
    model.eval()
    found, names = {}, ('loss', 'accuracy', 'Squares')
    with torch.no_grad():
        for name, dl in dls.items():
            pairs = [(model(x), y) for x, y in dl]
            out, y = (torch.cat(o) for o in zip(*pairs))
            squares = out.gather(1, y[:, None]).square().mean().sqrt()
            found[name] = len(y), F.cross_entropy(out, y), (out.argmax(1) == y).float().mean(), squares
    model.train()
    res = {f'valid_{s}_{name}': v.item() for s, (_, *values) in found.items() for name, v in zip(names, values)}
    total = sum(n for n, *_ in found.values())
    means = {f'valid_{k}': sum(n*res[f'valid_{s}_{k}'] for s, (n, *_) in found.items())/total for k in names}
    return means | res

def stop_in_validation(at, step=8):
    "In one of the passes: the second one of the second epoch"
    return stop_when(lambda learn: not learn.training and learn.valid_idx == at and learn.state.optimizer_step == step)

@pytest.mark.filterwarnings('ignore:resume. valid_dl')
@pytest.mark.parametrize('kind, stops', [
    ('stock', [(2, 8), (4, 6), (5, 6)]), ('one generator', [(5, 8)]), ('persistent', [(6, 3), (3, 6)])])
def test_each_set_has_the_numbers_of_a_plain_loop_and_a_pass_goes_on_from_any_batch(kind, stops, tmp_path):
    "Persistent workers of a set are there again after a resume; in the first pass, one of two has them"
    whole, *others = check_resume(lambda: make(KINDS[kind]()), tmp_path, *(stop_in_validation(*o) for o in stops),
                                  n_epochs=2, valid_every=3)
    h, (model, opt, dl), valid, step = whole.history, start(), KINDS[kind](), 0
    torch.manual_seed(7)
    for _ in range(2):
        for batch in dl:
            plain_loop(model, opt, [batch])
            step += 1
            if step not in h.valids['step']: continue
            row, i = columns(model, valid), h.valids['step'].index(step)
            assert {k: h.valids[k][i] for k in row} == pytest.approx(row)
        assert {k: h.epochs[k][step//4 - 1] for k in row} == pytest.approx(row)
    assert same(weights(whole.model), weights(model)) and len(h.valids['step']) == 4
    for o in whole.valid_dl, *(o.valid_dl for o in others), ValidSets(valid): end_workers(o)

def test_validate_takes_a_dict():
    learn = make(problem(20, 5))
    sets = {'a': list(zip(*(o.split(4) for o in problem(14, 2)))), 'b': problem(9, 3)}
    expected = columns(learn.model, {'a': sets['a'], 'b': [sets['b']]})
    assert learn.validate(sets) == pytest.approx(expected)
    alone = {k.replace('_a_', '_'): v for k, v in expected.items() if '_a_' in k}
    assert learn.validate(problem(14, 2)) == pytest.approx(alone)
    learn.valid_dl = sets       # set between two fits, as a loader is
    learn.fit(1)
    assert isinstance(learn.valid_dl, ValidSets) and len(learn.valid_dl) == 5
    assert 'valid_b_accuracy' in learn.history.epochs
    whole = torch.cat([learn.predict(o) for o in (sets['a'], sets['b'])])
    assert torch.equal(learn.predict(learn.valid_dl), whole) and learn.validate() == learn.validate(sets)

def test_a_resume_names_the_set_whose_batches_are_read_again(tmp_path):
    "Also of loaders without a length; what is over, or did not begin, is not read; other sets are refused"
    def learner(*names): return make({k: Unsized(sets()[k]) for k in names or SIZES})
    with told() as said: check_resume(learner, tmp_path, stop_in_validation(5, 4), n_epochs=2)
    [text] = said
    assert "valid_dl['noisy'] is a Unsized" in text and 'first 1 ' in text
    learner().fit(2, hooks=[stop_in_validation(5, 4), Checkpoint(tmp_path/'other')])
    with pytest.raises(ValueError, match='loader has changed'):
        learner('noisy', 'clean').fit(2, hooks=[Checkpoint(tmp_path/'other')], resume=True)

def test_a_recorded_mean_and_a_cancelled_step_belong_to_their_set():
    def look(learn):
        learn.record('size', float(len(learn.batch[1])), mean=True)
        if not learn.training and learn.valid_idx == 1: raise CancelStep
    learn = make({'a': problem(14, 2), 'b': problem(9, 3)}, bs=4, hooks=[LambdaHook(after_loss=look)])
    row = {k: v[0] for k, v in learn.fit(1).epochs.items()}
    assert row['valid_a_size'] == pytest.approx((4*4 + 4*4 + 2*2)/10)
    assert row['valid_b_size'] == pytest.approx((4*4 + 4*4 + 1)/9) and row['valid_size'] == pytest.approx((36 + 33)/19)

def test_sets_whose_columns_would_collide_are_refused():
    valid = {'a': problem(), 'a_b': problem()}
    with pytest.raises(ValueError, match="valid_a_b_c.* 'a', 'a_b'"):
        make(valid, [Metric(accuracy, 'c'), Metric(accuracy, 'b_c')])
    with pytest.raises(ValueError, match='two columns .* valid_x_loss'):
        make(None, [Metric(accuracy, 'x_loss')]).validate({'x': problem()})
