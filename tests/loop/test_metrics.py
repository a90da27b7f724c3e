"Epoch values are those of the whole data set, however it is cut into batches"

import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from common import Stream, lazy, make_learner, record, stop_when
from trainer_nb.features.gradients import GradAccum
from trainer_nb.loop.metrics import Metric, accuracy

f1_score = lazy('sklearn.metrics', 'f1_score')
MulticlassF1Score = lazy('torchmetrics.classification', 'MulticlassF1Score')

N = 150     # two batches of 64 and a ragged one of 22; 22 of 7, the last one of 3
sizes = pytest.mark.parametrize('bs', [7, N])

def still(params): return torch.optim.SGD(params, lr=1e-30)     # weights that do not move, so that one forward says all

def data(n=N):
    g = torch.Generator().manual_seed(5)
    return torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)

def cut(bs, *tensors): return list(zip(*(t.split(bs) for t in tensors)))

def fitted(bs, metrics, model=None, make_dl=cut, tensors=None, **kwargs):
    "The model, and the only epoch's values"
    x, y = tensors or data()
    model = nn.Linear(4, 3) if model is None else model
    learn = make_learner(model, make_dl(bs, x, y), make_dl(bs, x, y), optim=still, metrics=metrics, **kwargs)
    learn.fit(1)
    return model, {k: v[0] for k, v in learn.history.epochs.items()}

def assert_both(values, name, expected, tol=1e-6):
    for phase in 'train', 'valid':
        assert values[f'{phase}_{name}'] == pytest.approx(expected, abs=tol), f'{phase}_{name}'

def logits(model, x=None):
    "In double precision"
    with torch.no_grad():
        return (data()[0] if x is None else x).double() @ model.weight.double().T + model.bias.double()

def share(z, y): return (z.argmax(1) == y).double().mean().item()


# Functions and objects

def margin(pred, targ): return (pred.gather(1, targ[:, None])[:, 0] - pred.mean(1)).mean()

@sizes
def test_functions(bs):
    model, values = fitted(bs, [accuracy, margin,
                                Metric(lambda pred, targ: pred.square().mean().item(), name='square')])
    z, y = logits(model), data()[1]
    assert_both(values, 'loss', F.cross_entropy(z, y).item())
    assert_both(values, 'accuracy', share(z, y))
    assert_both(values, 'margin', margin(z, y).item())
    assert_both(values, 'square', z.square().mean().item())

def spread(pred, targ): return pred.std()
def hits(pred, targ): return (pred.argmax(1) == targ).sum()

def test_what_is_no_mean_is_the_same_in_each_epoch():
    """as in a plain loop: the mean over batches, weighted by their samples; also in another pass,
    and after a stop in mid-epoch"""
    dl = cut(7, *data())
    learn = make_learner(nn.Linear(4, 3), dl, dl, optim=still, metrics=[spread, hits, accuracy])
    learn.fit(2)
    learn.fit(1, hooks=[stop_when(lambda learn: learn.training and learn.state.batch_idx == 9)])
    learn.resume()
    zs = [(logits(learn.model, x).float(), y) for x, y in dl]
    for f in spread, hits, accuracy:
        expected = sum(len(y)*f(z, y).item() for z, y in zs)/N
        for phase in 'train', 'valid':
            values = learn.history.epochs[f'{phase}_{f.__name__}']
            assert len(set(values)) == 1 and values == pytest.approx([expected]*3, rel=1e-5)
        assert learn.validate()[f'valid_{f.__name__}'] == values[0]


# Weights

class PerToken(nn.Linear):
    def forward(self, x): return super().forward(x).transpose(1, 2)

@pytest.mark.parametrize('lengths, least', [((3, 900, 2, 5000), 0), ((6,)*5, -4)], ids=['large', 'ignored'])
def test_accuracy_counts_each_target_once(lengths, least):
    "Batches were weighted by their sequences, and targets that cross_entropy ignores counted as wrong"
    dl = [(torch.randn(2, n, 4), torch.randint(least, 3, (2, n))) for n in lengths]
    dl = [(x, y.masked_fill(y < 0, -100)) for x, y in dl]
    learn = make_learner(PerToken(4, 3), dl, dl, optim=still, metrics=[accuracy])
    learn.fit(2)
    right = torch.cat([(learn.model(x).argmax(1) == y)[y >= 0] for x, y in dl]).double().mean().item()
    for phase in 'train', 'valid':
        assert learn.history.epochs[f'{phase}_accuracy'] == pytest.approx([right]*2, abs=1e-6)

def test_validation_without_a_loss():
    "In some batches, or in all of them"
    def eval_step(batch, learn):
        z = learn.model(batch[0])
        return {'pred': z, 'targ': batch[1],
                **({'loss': F.cross_entropy(z, batch[1])} if len(batch[0]) in with_loss else {})}
    for with_loss in (22,), (64,), ():
        model, values = fitted(64, [accuracy], eval_step=eval_step)
        z, y = logits(model), data()[1]
        assert values['valid_accuracy'] == pytest.approx(share(z, y), abs=1e-6)
        part = {(22,): slice(128, None), (64,): slice(0, 128)}.get(with_loss)
        if part: assert values['valid_loss'] == pytest.approx(F.cross_entropy(z[part], y[part]).item(), abs=1e-6)
        else: assert 'valid_loss' not in values


# Tensors that change after the step

class Reusing:
    "A loader that has one pair of tensors, and fills it anew for each batch"
    def __init__(self, bs, x, y): self.bs, self.x, self.y = bs, x, y
    def __iter__(self):
        bx, by = torch.empty(self.bs, 4), torch.empty(self.bs, dtype=torch.long)
        for x, y in cut(self.bs, self.x, self.y):
            bx[:len(x)], by[:len(y)] = x, y
            yield bx[:len(x)], by[:len(y)]

def in_dataloader(bs, x, y): return DataLoader(Stream(Reusing(bs, x, y)), batch_size=None)

@pytest.mark.parametrize('make_dl', [Reusing, in_dataloader])
def test_loaders_that_use_their_memory_again(make_dl, bs=7):
    model, values = fitted(bs, [accuracy, margin, MulticlassF1Score(3)], make_dl=make_dl)
    z, y = logits(model), data()[1]
    assert_both(values, 'accuracy', share(z, y))
    assert_both(values, 'margin', margin(z, y).item())
    assert_both(values, 'MulticlassF1Score', f1_score(y, z.argmax(1), average='macro'))


# Several values

def recalls(pred, targ): return torch.stack([((pred.argmax(1) == c) & (targ == c)).float().mean() for c in range(3)])
def both(pred, targ): return {'mean': pred.mean(), 'hit': {'a': 1., 'b': 2.}['b'], 'of': recalls(pred, targ)}
def as_array(pred, targ): return recalls(pred, targ).numpy()

class Detection:
    "Says several things, one of them by class"
    def reset(self): self.z, self.y = [], []
    def update(self, pred, targ):
        self.z.append(pred)
        self.y.append(targ)
    def compute(self):
        z, y = torch.cat(self.z), torch.cat(self.y)
        return {'map': (z.argmax(1) == y).float().mean(), 'classes': y.bincount(minlength=3)/len(y)}

@sizes
def test_vectors_and_dicts(bs):
    model, values = fitted(bs, [recalls, both, Metric(as_array, classes=['cat', 'dog', 'cow']),
                                Metric(both, name='my')])
    z, y = logits(model), data()[1]
    for c, name in enumerate(['cat', 'dog', 'cow']):
        for column in f'recalls/{c}', f'of/{c}', f'as_array/{name}', f'my/of/{c}':
            assert_both(values, column, ((z.argmax(1) == c) & (y == c)).double().mean().item())
    for column in 'mean', 'my/mean': assert_both(values, column, z.mean().item())
    assert_both(values, 'hit', 2.)
    assert 'train_recalls' not in values

@pytest.mark.parametrize('f,error,text', [
    (lambda p, t: {str(len(p)): 1.}, ValueError, 'returned mine/3, but mine/7 before'),
    (lambda p, t: 1/0, ZeroDivisionError, 'zero')])
def test_errors_name_the_metric(f, error, text):
    with pytest.raises(error, match=text) as seen: fitted(7, [Metric(f, name='mine', classes='ab')])
    assert '`mine`' in str(seen.value) + ''.join(seen.value.__notes__)


# State

def test_state_of_metric_objects_never_leaks():
    class Count:
        def __init__(self): self.n = 1000       # whatever it was before, and is not touched
        def reset(self): self.n = 0
        def update(self, pred, targ): self.n += len(targ)
        def compute(self): return float(self.n)
    metric, (x, y) = Count(), data()
    learns = [make_learner(nn.Linear(4, 3), cut(7, x, y), cut(7, x[:n], y[:n]), metrics=[metric]) for n in (20, 50)]
    for _ in range(2):
        for learn in learns: learn.fit(2)
    assert learns[1].validate()['valid_Count'] == 50 and learns[0].validate(cut(3, x[:5], y[:5]))['valid_Count'] == 5
    for learn, n in zip(learns, (20, 50)):
        assert learn.history.epochs['train_Count'] == [N]*4 and learn.history.epochs['valid_Count'] == [n]*4
    assert metric.n == 1000

def test_the_weight_of_the_loss_does_not_weigh_accuracy():
    "A loss with class weights is divided by the sum of these; each sample counts once for the accuracy"
    w = torch.tensor([1., 10., 3., 1., 1.])
    x, y = data()
    order = y.argsort()
    def step(batch, learn):
        z = learn.model(batch[0])
        return {'loss': F.cross_entropy(z, batch[1], w[:z.size(1)].to(z)), 'pred': z, 'targ': batch[1],
                'n': w[batch[1]].sum()}
    model, values = fitted(16, [accuracy], tensors=(x[order], y[order]), train_step=step)
    z = logits(model, x)
    assert_both(values, 'loss', F.cross_entropy(z, y, w[:z.size(1)].to(z)).item())
    assert_both(values, 'accuracy', share(z, y))

@pytest.mark.parametrize('extra, hooks', [(dict(n=7.), [GradAccum(2)]), (dict(reduction='sum'), [])], ids=str)
def test_entries_of_a_batch_or_an_output_do_not_weigh_the_loss(extra, hooks):
    "Only a user's own step gives 'n' and 'reduction' a meaning"
    class Named(nn.Linear):
        def forward(self, x, **kwargs): return {'logits': super().forward(x), **kwargs}
    def fit(extra):
        torch.manual_seed(0)
        dl = [{'x': x, 'labels': y, **extra} for x, y in cut(16, *data(40))]
        learn = make_learner(Named(4, 3), dl, dl, loss_fn=lambda out, targ: F.cross_entropy(out['logits'], targ),
                             optim=lambda p: torch.optim.SGD(p, .1), hooks=hooks)
        learn.fit(2)
        return record(learn)
    assert fit(extra) == fit({})

def test_metrics_for_two_shapes_are_taken_as_they_are():
    "One that squeezes by itself, one whose values agree, one that compares quantiles with one target"
    x, y = torch.randn(20, 4), torch.randn(20)
    def squeezes(pred, targ): return (pred.squeeze(-1) - targ).abs().mean()
    def largest(pred, targ): return pred.max()
    def pinball(pred, targ): return (targ[:, None] - pred).abs().mean()
    learn = make_learner(nn.Linear(4, 1), (x, y), loss_fn=lambda pred, targ: F.mse_loss(pred[:, 0], targ),
                         metrics=[squeezes, largest])
    learn.fit(1)
    learn = make_learner(nn.Linear(4, 3), (x, y), loss_fn=lambda pred, targ: pinball(pred, targ), metrics=[pinball])
    learn.fit(1)
    def survival(pred, targ): return ((pred[:, 0] - targ[:, 0])*targ[:, 1]).square().mean()     # time, and if seen
    make_learner(nn.Linear(4, 1), (x, torch.stack([y, y > 0], 1)), loss_fn=survival, metrics=[survival]).fit(1)
