"Epoch values are those of the whole data set, however it is cut into batches"
import pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from common import Share, Stream, lazy, make_learner, record, stop_when
from trainer_nb.features.gradients import GradAccum
from trainer_nb.loop.metrics import Metric, accuracy

f1_score = lazy('sklearn.metrics', 'f1_score')
MulticlassF1Score = lazy('torchmetrics.classification', 'MulticlassF1Score')

N = 150     # two batches of 64 and a ragged one of 22; 22 of 7, the last one of 3
G = torch.Generator().manual_seed(5)
X, Y = torch.randn(N, 4, generator=G), torch.randint(0, 3, (N,), generator=G)

def still(params): return torch.optim.SGD(params, lr=1e-30)     # weights that do not move, so that one forward says all

def cut(bs, *tensors): return list(zip(*(t.split(bs) for t in tensors)))

def fitted(dl, metrics, **kwargs):
    "The logits of `X` in double precision, and the only epoch's values"
    learn = make_learner(nn.Linear(4, 3), dl, dl, optim=still, metrics=metrics, **kwargs)
    learn.fit(1)
    return logits(learn.model), {k: v[0] for k, v in learn.history.epochs.items()}

def logits(model):
    with torch.no_grad(): return X.double() @ model.weight.double().T + model.bias.double()

def share(z, y): return (z.argmax(1) == y).double().mean().item()

def assert_both(values, **expected):
    for name, value in expected.items():
        for phase in 'train', 'valid': assert values[f'{phase}_{name}'] == pytest.approx(value, abs=1e-6), name


class Reusing:
    "A loader that has one pair of tensors, and fills it anew for each batch"
    def __init__(self, bs, x, y): self.bs, self.x, self.y = bs, x, y
    def __iter__(self):
        bx, by = torch.empty(self.bs, 4), torch.empty(self.bs, dtype=torch.long)
        for x, y in cut(self.bs, self.x, self.y):
            bx[:len(x)], by[:len(y)] = x, y
            yield bx[:len(x)], by[:len(y)]

def in_dataloader(bs, x, y): return DataLoader(Stream(Reusing(bs, x, y)), batch_size=None)

def margin(pred, targ): return (pred.gather(1, targ[:, None])[:, 0] - pred.mean(1)).mean()
def recalls(pred, targ): return torch.stack([((pred.argmax(1) == c) & (targ == c)).float().mean() for c in range(3)])
def both(pred, targ): return {'mean': pred.mean(), 'two': 2., 'of': recalls(pred, targ)}
def as_array(pred, targ): return recalls(pred, targ).numpy()

@pytest.mark.parametrize('make_dl, bs', [(cut, N), (cut, 7), (Reusing, 7), (in_dataloader, 7)])
def test_functions_and_objects_numbers_vectors_and_dicts(make_dl, bs):
    names = ['cat', 'dog', 'cow']
    z, values = fitted(make_dl(bs, X, Y), [
        accuracy, margin, recalls, both, Metric(as_array, classes=names), Metric(both, name='my'),
        Metric(lambda pred, targ: pred.square().mean().item(), name='square'), MulticlassF1Score(3)])
    f1 = f1_score(Y, z.argmax(1), average='macro')
    assert_both(values, loss=F.cross_entropy(z, Y).item(), accuracy=share(z, Y), margin=margin(z, Y).item(),
                square=z.square().mean().item(), MulticlassF1Score=f1, two=2.,
                **dict.fromkeys(['mean', 'my/mean'], z.mean().item()))
    for c, name in enumerate(names):
        recall = ((z.argmax(1) == c) & (Y == c)).double().mean().item()
        assert_both(values, **dict.fromkeys([f'recalls/{c}', f'of/{c}', f'as_array/{name}', f'my/of/{c}'], recall))
    assert 'train_recalls' not in values

def spread(pred, targ): return pred.std()
def hits(pred, targ): return (pred.argmax(1) == targ).sum()

def test_what_is_no_mean_is_the_same_in_each_epoch():
    "The mean over batches, weighted by their samples, as in a plain loop; also in `validate` and after a stop"
    dl = cut(7, X, Y)
    learn = make_learner(nn.Linear(4, 3), dl, dl, optim=still, metrics=[spread, hits])
    learn.fit(1)
    learn.fit(1, hooks=[stop_when(lambda learn: learn.training and learn.state.batch_idx == 9)])
    learn.resume()
    for f in spread, hits:
        expected = sum(len(y)*f(learn.model(x), y).item() for x, y in dl)/N
        for phase in 'train', 'valid':
            values = learn.history.epochs[f'{phase}_{f.__name__}']
            assert len(set(values)) == 1 and values == pytest.approx([expected]*2, rel=1e-5)
        assert learn.validate()[f'valid_{f.__name__}'] == values[0]

class PerToken(nn.Linear):
    def forward(self, x): return super().forward(x).transpose(1, 2)

@pytest.mark.parametrize('ignored', [-100, 255])
def test_accuracy_counts_each_target_once(ignored):
    "Tokens, not sequences, and not those that the loss ignores"
    dl = [(torch.randn(2, n, 4), torch.randint(-2, 3, (2, n))) for n in (3, 900, 2, 5000)]
    dl = [(x, y.masked_fill(y < 0, ignored)) for x, y in dl]
    learn = make_learner(PerToken(4, 3), dl, dl, optim=still, metrics=[accuracy],
                         loss_fn=nn.CrossEntropyLoss(ignore_index=ignored))
    learn.fit(1)
    right = torch.cat([(learn.model(x).argmax(1) == y)[y != ignored] for x, y in dl]).double().mean().item()
    row = learn.history.epoch_rows[0]
    assert row['train_accuracy'] == pytest.approx(right, abs=1e-6) == row['valid_accuracy']

def test_the_weight_of_the_loss_does_not_weigh_accuracy():
    "A loss with class weights is divided by the sum of these; some batches of validation have none"
    w, order = torch.tensor([1., 10., 3.]), Y.argsort()
    def step(batch, learn):
        z, y = learn.model(batch[0]), batch[1]
        res = {'pred': z, 'targ': y, 'n': w[y].sum()}
        return res | ({'loss': F.cross_entropy(z, y, w)} if learn.training or len(y) == 22 else {})
    z, values = fitted(cut(64, X[order], Y[order]), [accuracy], train_step=step)
    assert_both(values, accuracy=share(z, Y))
    assert values['train_loss'] == pytest.approx(F.cross_entropy(z, Y, w.double()).item(), abs=1e-6)
    last = order[128:]
    assert values['valid_loss'] == pytest.approx(F.cross_entropy(z[last], Y[last], w.double()).item(), abs=1e-6)

def test_entries_of_a_batch_or_an_output_do_not_weigh_the_loss():
    "Only a user's own step gives 'n' and 'reduction' a meaning"
    class Named(nn.Linear):
        def forward(self, x, **kwargs): return {'logits': super().forward(x), **kwargs}
    def loss_fn(out, targ): return F.cross_entropy(out['logits'], targ)
    def fit(**extra):
        torch.manual_seed(0)
        dl = [{'x': x, 'labels': y, **extra} for x, y in cut(16, X[:40], Y[:40])]
        learn = make_learner(Named(4, 3), dl, dl, loss_fn=loss_fn, lr=.1, hooks=[GradAccum(2)])
        learn.fit(2)
        return record(learn)
    assert fit(n=7., reduction='sum') == fit()

def test_state_of_metric_objects_never_leaks():
    "From one pass, phase or learner to another"
    metric = Share()
    metric.n = 1000     # whatever it was before, and is not touched
    first, second = (make_learner(nn.Linear(4, 3), cut(50, X, Y), cut(50, X[:60], Y[:60]), metrics=[metric, accuracy])
                     for _ in range(2))
    for learn in first, second, first: learn.fit(1)
    for row in *first.history.epoch_rows, *second.history.epoch_rows, first.validate(cut(3, X[:5], Y[:5])):
        for k in row.keys() & {'train_Share', 'valid_Share'}:
            assert row[k] == pytest.approx(row[k.replace('Share', 'accuracy')], abs=1e-6)
    assert metric.n == 1000

def pinball(pred, targ): return (targ[:, None] - pred).abs().mean()

def test_a_metric_for_two_shapes_is_taken_as_it_is():
    make_learner(nn.Linear(4, 3), (X, Y.float()), loss_fn=pinball, metrics=[pinball]).fit(1)
