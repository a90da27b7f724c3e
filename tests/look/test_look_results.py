"`results`, `confusion` and `report` against plain PyTorch and scikit-learn"
import copy, re
from functools import partial

import numpy as np, pytest, sklearn.metrics as sk, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Stream, make_learner, problem, same, shuffled, weights
from trainer_nb.all import AMP, EMA, Hook, Learner, LambdaHook
from trainer_nb.look.results import Results
from trainer_nb.look.samples import Look


def one_by_one(learn, batches, loss_fn):
    learn.model.eval()
    with torch.no_grad():
        res = [(p := learn.model(x[i:i+1]), y[i], loss_fn(p, y[i:i+1])) for x, y in batches for i in range(len(x))]
    learn.model.train()
    return torch.cat([o[0] for o in res]), torch.stack([o[1] for o in res]), torch.stack([o[2] for o in res])

FORMS = {
    'arrays': lambda: tuple(o.numpy() for o in problem()),
    'shuffled': shuffled, 'iterable': lambda: DataLoader(Stream([*zip(*problem())]), 5),
    'drop_last': lambda: DataLoader(TensorDataset(*problem()), 5, drop_last=True),
    'sets': lambda: {'a': problem(), 'b': problem(7, 3)},
}

@pytest.mark.parametrize('form', FORMS)
def test_losses_are_those_of_batches_of_one_and_samples_are_found_again(form):
    learn = make_learner()
    learn.fit(1)
    torch.manual_seed(3)
    rng, before = torch.get_rng_state(), weights(learn.model)
    res = learn.results(FORMS[form]())
    assert torch.equal(torch.get_rng_state(), rng) and same(before, weights(learn.model)) and not learn.hooks
    torch.manual_seed(3)
    dl = learn.loader_for(FORMS[form]())
    batches = [next(iter(b.values())) if isinstance(b, dict) else b for b in dl]
    pred, targ, loss = one_by_one(learn, batches, F.cross_entropy)
    assert torch.allclose(res.pred, pred, atol=1e-6) and torch.equal(res.targ, targ)
    assert torch.allclose(res.loss, loss, atol=1e-6)
    state = torch.get_rng_state()
    x = torch.cat([b[0] for b in batches])
    k = res.top_losses(6)[1]
    shown = res.show(6)
    assert torch.equal(torch.stack([o['x'] for o in shown.samples]), x[k]) and torch.equal(k, loss.topk(6)[1])
    assert [dict(o)['target'] for o in shown.captions] == [str(o.item()) for o in targ[k]]
    marks = ['✓' if o else '✗' for o in pred[k].argmax(1) == targ[k]]
    assert [dict(o)['predicted'] for o in shown.captions] == [f'{o} {m}' for o, m in zip(pred[k].argmax(1), marks)]
    assert torch.equal(torch.get_rng_state(), state) and len(res.show(at=range(10)).samples) == 10     # all that it got

y3 = torch.randint(3, (7, 4), generator=torch.Generator().manual_seed(0))
def ignoring(ignored):
    y = y3.clone()
    y[0, 1:] = y[3, 0] = y[6, :2] = ignored
    return y

LOSSES = {      # nbs/look/03_results has functions, modules, sums, and weights of classes
    'smoothed': (nn.CrossEntropyLoss(label_smoothing=.1), (7, 3), y3[:, 0]),
    'partial ignored': (partial(F.cross_entropy, ignore_index=-1), (7, 3, 4), ignoring(-1)),
    'bce': (nn.BCEWithLogitsLoss(), (7, 4), (y3 > 0).float()),
    'kl': (nn.KLDivLoss(reduction='batchmean'), (7, 4), torch.full((7, 4), .25)),
    'rmse': (lambda p, t: (p - t).square().mean().sqrt(), (7, 4), torch.zeros(7, 4)),
}

class Given(nn.Module):
    "Returns the tensor that the input numbers point to"
    def __init__(self, out):
        super().__init__()
        self.out = nn.Parameter(out)
    def forward(self, i): return self.out[i]

@pytest.mark.parametrize('name', LOSSES)
def test_any_loss_function(name, bs=3):
    loss_fn, shape, targ = LOSSES[name]
    out = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    i = torch.arange(7)
    expected = torch.stack([loss_fn(out[k:k+1], targ[k:k+1]) for k in i])
    def learner(**kwargs): return Learner(Given(out), valid_dl=(i, targ), bs=bs, display=False, **kwargs)
    learn = learner(loss_fn=loss_fn)
    res = learn.results()
    assert torch.allclose(res.loss, expected, atol=1e-6) and torch.equal(res.pred, out)
    own = learner(train_step=lambda b, learn: {
        'loss': loss_fn(p := learn.model(b[0]), b[1]), 'pred': p, 'targ': b[1]}).results()
    assert torch.allclose(own.loss, expected, atol=1e-6) and torch.equal(own.targ, targ)
    given = learn.results(loss=lambda p, t: p.flatten(1).sum(1) if p.ndim > 1 else p)
    assert torch.allclose(given.loss, out.flatten(1).sum(1) if out.ndim > 1 else out)

def test_the_pass_is_that_of_validate():
    "Hooks take part: the average of EMA predicts, a hook that changes the batch is heard, AMP computes"
    shift = LambdaHook(before_step=lambda learn: setattr(learn, 'batch', (learn.batch[0] + 1, learn.batch[1])))
    for hook in EMA(.5), shift, AMP():
        learn = make_learner(valid_dl=problem(), hooks=[hook])
        learn.fit(1)
        res = learn.results()
        assert res.loss.dtype == torch.float32
        assert res.loss.mean().item() == pytest.approx(learn.validate()['valid_loss'],
                                                       rel=1e-2 if hook.name == 'AMP' else 1e-5)

def test_in_a_fit_and_after_a_cancelled_batch():
    seen = []
    class Look_(Hook):
        def after_epoch(self, learn): seen.append(learn.results())
    learn = make_learner(valid_dl=problem(), hooks=[Look_()])
    twin = make_learner(valid_dl=problem(), model=copy.deepcopy(learn.model))
    for o in learn, twin:
        torch.manual_seed(0)
        o.fit(2)
    assert same(weights(learn.model), weights(twin.model))
    assert seen[1].loss.mean().item() == pytest.approx(learn.history.epochs['valid_loss'][1], rel=1e-5)

def test_mistakes():
    learn = make_learner()
    with pytest.raises(ValueError, match='no valid_dl'): learn.results()
    with pytest.raises(TypeError, match='not callable'): learn.results(problem(), keep=3)
    class Batchwise(nn.Module):
        def forward(self, p, t): return p.mean(0)
    with pytest.raises((ValueError, RuntimeError)): make_learner(loss_fn=Batchwise()).results(problem())


# confusion and report

def results(pred, targ, loss_fn=F.cross_entropy, **kwargs):
    return Results(pred, targ, torch.zeros(len(targ)), {}, Look(**kwargs), loss_fn)

def check_scores(res, targ, pred, **kwargs):
    theirs = sk.precision_recall_fscore_support(targ, pred, zero_division=0, **kwargs)
    for k, o in zip(('precision', 'recall', 'f1', 'support'), theirs):
        assert np.allclose(res.report().scores[k].nan_to_num(), o)

@pytest.mark.parametrize('seed, n, c', [(0, 1, 2), (3, 300, 30), (1, 20, 30)])
def test_scores_are_those_of_scikit_learn(seed, n, c):
    "Also for classes without a sample, or that are never predicted; those that never occur do not pull the mean down"
    g = torch.Generator().manual_seed(seed)
    pred, targ = torch.randn(n, c, generator=g), torch.randint(max(c - 1, 1), (n,), generator=g)
    res, ids = results(pred, targ), pred.argmax(1)
    assert np.array_equal(res.confusion().counts, sk.confusion_matrix(targ, ids, labels=range(c)))
    check_scores(res, targ, ids, labels=range(c))
    means = {o[0]: [float(v) for v in o[1:4]] for o in res.report().rows()[-2:]}
    for name, how in ('mean', 'macro'), ('mean by support', 'weighted'):
        expected = sk.precision_recall_fscore_support(targ, ids, average=how, zero_division=0)[:3]
        assert means[name] == pytest.approx(expected, abs=6e-4)

t2 = torch.tensor([0, 1, 1, 0])
TWO_CLASSES = [
    (torch.tensor([-1., 2, .4, -3]), t2.float(), F.binary_cross_entropy_with_logits, [0, 1, 1, 0]),
    (torch.tensor([.1, .9, .4, .3])[:, None], t2.float()[:, None], nn.BCELoss(), [0, 1, 0, 0]),
    (torch.tensor([-1., 2, -1, 3]), t2.bool(), lambda p, t: 0, [0, 1, 0, 1]),
    (torch.tensor([[1., 0], [0, 1], [1, 0], [0, 1]]), t2[:, None], None, [0, 1, 0, 1])]

def test_two_classes_in_all_forms():
    for pred, targ, loss_fn, ids in TWO_CLASSES:
        found, t = results(pred, targ, loss_fn).as_ids()
        assert found.tolist() == ids and t.tolist() == t2.tolist()

def test_pixels_tokens_and_ignored_targets():
    g = torch.Generator().manual_seed(0)
    pred, targ = torch.randn(5, 3, 4, 6, generator=g), torch.randint(3, (5, 4, 6), generator=g)
    targ[0] = -100
    keep = targ >= 0
    right = sk.confusion_matrix(targ[keep], pred.argmax(1)[keep])
    assert np.array_equal(results(pred, targ).confusion().counts, right)
    assert np.array_equal(results(pred.permute(0, 2, 3, 1), targ).confusion().counts, right)

def test_labels_and_regression():
    g = torch.Generator().manual_seed(0)
    pred, targ = torch.randn(50, 4, generator=g), torch.randint(2, (50, 4), generator=g).float()
    labels = results(pred, targ, nn.BCEWithLogitsLoss())
    check_scores(labels, targ, pred > 0)
    res = results(pred, targ + pred, F.mse_loss)
    scores = res.report().scores
    for i in range(4):
        assert scores['r2'][i] == pytest.approx(sk.r2_score((targ + pred)[:, i], pred[:, i]))
        assert scores['mae'][i] == pytest.approx(sk.mean_absolute_error((targ + pred)[:, i], pred[:, i]))
    assert results(torch.randn(3, 1), torch.ones(3, 1), F.mse_loss).report().scores['r2'].isnan().all()
    two = torch.tensor([[0., 1]]).expand(2000, 2)
    assert {*results(two, two, F.mse_loss).report().points[0]} == {0, 1}      # of each output
    counts = torch.arange(6)[:, None]
    assert results(counts + .5, counts, nn.MSELoss()).task() == 'regression'            # whole numbers, but no classes
    with pytest.raises(ValueError, match='report'): labels.confusion()

def test_the_text_and_the_picture_say_the_same():
    pred = torch.tensor([0, 1, 2, 2, 2, 1, 0, 0])
    targ = torch.tensor([0, 1, 2, 1, 1, 1, 0, 2])
    c = results(pred, targ, None, classes=['cat', '<dog>', 'eel']).confusion()
    assert '5 of 8 right, 62.5%' in repr(c) and '&lt;dog&gt;' in c._repr_html_() and '<dog>' not in c._repr_html_()
    assert '50%' in c._repr_html_()
    near = results(torch.tensor([0]*299 + [1]), torch.tensor([0]*300), None).confusion()
    assert '&gt;99%<' in near._repr_html_() and '&lt;1%<' in near._repr_html_() and '100%' not in near._repr_html_()
    blue = [float(o) for o in re.findall(r'0,114,178,([.0-9]+)', results(
        torch.tensor([0]*89 + [1]*111), torch.tensor([0]*100 + [1]*100), None).confusion()._repr_html_())]
    assert blue[1] - blue[0] > .15      # 100 % and 89 %
    many = results(torch.arange(40), torch.arange(40).roll(1), None).confusion()
    assert 'data:image/png' in many._repr_html_() and '0 of 40' in repr(many)
    empty = results(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)).confusion()
    assert empty.counts.sum() == 0 and '0 of 0' in repr(empty)


def test_confusion_says_what_it_counts():
    g = torch.Generator().manual_seed(0)
    for shape, unit in ((), 'samples'), ((7,), 'tokens'), ((4, 6), 'pixels'):
        pred, targ = torch.randn(5, 3, *shape, generator=g), torch.randint(3, (5, *shape), generator=g)
        c = results(pred, targ).confusion()
        assert c.rows()[0][2] == c.unit == unit and f'>{unit}<' in c._repr_html_()
        assert (f'of {targ.numel()} {unit} right' in c.title()) == (unit != 'samples')


# Losses that are not those of batches of one

def contrast(pred, targ=None): return F.cross_entropy(pred @ pred.T, torch.arange(len(pred)))
def contrast_step(batch, learn): return {'loss': contrast(pred := learn.model(batch[0])), 'pred': pred}
def weighted(pred, targ): return F.cross_entropy(pred, targ, weight=torch.tensor([1., 5., 25.]))

@pytest.mark.parametrize('given', [dict(loss_fn=contrast), dict(train_step=contrast_step)])
def test_losses_between_samples_are_refused(given):
    learn = make_learner(nn.Linear(4, 3), **given)
    with pytest.raises(ValueError, match='compares samples with one another'): learn.results(problem())
    res = learn.results(problem(), loss=lambda pred, targ: pred.square().sum(1))
    with torch.no_grad(): assert torch.allclose(res.loss, learn.model(problem()[0]).square().sum(1))

class Meta(torch.Tensor):
    "A subclass that cannot be given a dimension, as MONAI's with its metadata"
    def __getitem__(self, i): raise IndexError('no')

@pytest.mark.parametrize('given', [
    dict(loss_fn=weighted),
    dict(train_step=lambda b, learn: {'loss': weighted(learn.model(b[0]), b[1]).as_subclass(Meta), 'n': len(b[0])})])
def test_weighted_means_and_tensors_of_other_classes_have_losses_of_samples(given):
    learn = make_learner(nn.Linear(4, 3), **given)
    x, y = problem()
    with torch.no_grad(): expected = F.cross_entropy(learn.model(x), y, reduction='none')
    res = learn.results((x, y))
    assert type(res.loss) is torch.Tensor and torch.allclose(res.loss, expected, atol=1e-6)


# What programs of other libraries have: graphs, targets that the step makes, losses with weights

class Graphs:
    "As batches of torch_geometric"
    def __init__(self, graphs): self.graphs, self.num_graphs = graphs, len(graphs)
    def __getitem__(self, i): return self.graphs[i]
    def to_data_list(self): return self.graphs
    def to_dict(self): return {'x': torch.cat(self.graphs), 'ptr': torch.arange(len(self.graphs) + 1)}
    from_data_list = classmethod(lambda cls, graphs: cls(graphs))

def test_graphs_and_targets_that_the_step_makes():
    graphs = [torch.rand(3 + i, 2) for i in range(5)]
    def step(batch, learn):
        pred = learn.model(torch.stack([o.sum(0) for o in batch.graphs]))
        targ = torch.rand_like(pred)
        return {'loss': F.mse_loss(pred, targ), 'pred': pred, 'targ': targ}
    learn = Learner(nn.Linear(2, 2), train_step=step, display=False)
    res = learn.results([Graphs(graphs[:3]), Graphs(graphs[3:])])
    with torch.no_grad(): expected = learn.model(torch.stack([o.sum(0) for o in graphs]))
    assert torch.allclose(res.pred, expected) and len(res.show(5).captions) == 5
    learn.train_dl = [Graphs(graphs)]
    assert '(25, 2)' in repr(learn.show_batch())

def test_each_text_of_a_sample_is_shown():
    def step(batch, learn):
        pred = learn.model(torch.tensor([[len(o) + .0] for o in batch[0]]))[:, 0]
        return {'loss': F.mse_loss(pred, batch[2]), 'pred': pred, 'targ': batch[2]}
    learn = Learner(nn.Linear(1, 1), train_step=step, display=False)
    shown = repr(learn.results([(('a', 'bb'), ('ccc', 'dddd'), torch.rand(2))]).show())
    assert 'x1' in shown and 'ccc' in shown and 'dddd' in shown

def test_what_a_loss_with_weights_takes_are_no_scores():
    class Proxies(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3, 5))
        def forward(self, pred, targ): return F.cross_entropy(pred @ self.weight.T, targ)
    learn = make_learner(nn.Linear(4, 5), loss_fn=Proxies())
    res = learn.results(problem())
    assert '✓' not in repr(res.show()) and '✗' not in repr(res.show())
    with pytest.raises(ValueError, match='weights of its own'): res.report()
    scores = learn.results(problem(), keep=lambda pred: pred @ learn.loss_fn.weight.T)
    assert len(scores.report().names) == 3 and 'predicted' in repr(scores.show())
