"What four documents about training loops ask for, point by point"
import math

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, digest, make_learner, problem, record, same, stop_when, weights
from trainer_nb.draw import Plot
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.loop.metrics import Metric, accuracy

NS = [len(y) for _, y in batches()]     # the last batch is short, and weighs less

# what a step returns

def two_losses(batch, learn):
    x, y = batch
    pred = learn.model(x)
    ce, reg = F.cross_entropy(pred, y), .01*sum(p.square().sum() for p in learn.model.parameters())
    return {'loss': ce + reg, 'loss_ce': ce, 'loss_reg': reg, 'pred': pred, 'targ': y}

def and_also(f):
    "The step that returns two losses, and what `f(result, batch, learn)` returns"
    def step(batch, learn):
        res = two_losses(batch, learn)
        return {**res, **f(res, batch, learn)}
    return step

def one_loss(batch, learn): return {k: v for k, v in two_losses(batch, learn).items() if '_' not in k}

def plain_means(model, data):
    "Means over samples, of the two losses"
    x, y = map(torch.cat, zip(*data))
    with torch.no_grad(): ce = F.cross_entropy(model(x), y).item()
    return ce, .01*sum(p.square().sum() for p in model.parameters()).item()

def weighted(values): return sum(v*n for v, n in zip(values, NS))/sum(NS[:len(values)])

def linear(): return nn.Linear(4, 3)

def made(step=two_losses, valid_dl=None, train_dl=None, model=None, **kwargs):
    "The same learner each time, with other steps"
    torch.manual_seed(0)
    options = {'lr': .1, 'train_step': step, **kwargs}
    return make_learner(linear() if model is None else model, train_dl or batches(), valid_dl, **options)

def fitted(*args, n_epochs=1, **kwargs): return made(*args, **kwargs).fit(n_epochs)     # its history

def test_numbers_that_a_step_returns_are_columns():
    "With the means of a plain computation, and they change no other number"
    few, learn = (made(step, batches(13, 2), metrics=[accuracy]) for step in (one_loss, two_losses))
    few.fit(2)
    h = learn.fit(2)
    for phase in 'train', 'valid':
        for name in 'loss', 'loss_ce', 'loss_reg', 'accuracy': assert len(h.epochs[f'{phase}_{name}']) == 2
    assert [*h.steps] == ['train_loss', 'train_loss_ce', 'train_loss_reg', 'lr']
    loss, ce, reg = (torch.tensor(h.steps[f'train_{k}']) for k in ('loss', 'loss_ce', 'loss_reg'))
    assert torch.allclose(loss, ce + reg, rtol=1e-6) and not torch.equal(loss, ce)
    assert h.epochs['train_loss_ce'][1] == pytest.approx(weighted(h.steps['train_loss_ce'][len(NS):]), rel=1e-9)
    found = [h.epochs[f'valid_{k}'][1] for k in ('loss_ce', 'loss_reg')]
    assert found == pytest.approx(plain_means(learn.model, batches(13, 2)), rel=1e-5)
    assert 'train_loss_ce' in repr(h) and 'valid_loss_reg' in repr(h)
    assert same(weights(few.model), weights(learn.model))
    for part, columns in record(few).items():
        for k, v in columns.items(): assert record(learn)[part][k] == v, k

def test_only_numbers_that_mean_nothing_else():
    extra = and_also(lambda res, batch, learn: {
        'n': len(batch[0]), 'temp': 2, 'mse': .5, 'flag': True, 'ids': batch[1], 'n_right': torch.tensor(3),
        'one': torch.ones(1), 'text': 'a', 'nothing': None, 'epoch': 7, 'score': res['pred'].sum(), 3: 4.})
    metrics = [Metric(lambda a, b: a, name='doubled', pred='score', targ='temp'), accuracy]
    names = {'loss', 'loss_ce', 'loss_reg', 'mse', 'n_right', 'doubled', 'accuracy'}    # a metric reads score and temp
    assert {o for o in fitted(extra, metrics=metrics).epochs if o[:6] == 'train_'} == {f'train_{o}' for o in names}

def test_a_sum_is_divided_as_the_loss_is():
    def step(batch, learn):
        error = (learn.model(batch[0]) - 1).square()
        return {'loss': error.sum(), 'loss_first': error[:, 0].sum(), 'reduction': 'sum'}
    learn = made(step, lr=1e-9)
    learn.fit(1)
    with torch.no_grad(): first = (learn.model(problem()[0]) - 1).square()[:, 0].mean().item()
    assert learn.history.epochs['train_loss_first'][0] == pytest.approx(first, rel=1e-4)

class Several(nn.Module):
    "Returns several losses by name, as models of Hugging Face do"
    def __init__(self):
        super().__init__()
        self.layer = linear()
    def forward(self, x, labels, scale):
        logits = self.layer(x)*scale
        box = logits.square().mean()
        return {'loss': F.cross_entropy(logits, labels) + box, 'logits': logits, 'loss_box': box}

def test_a_mapping_output_shows_its_losses():
    data = [{'x': x, 'labels': y, 'scale': torch.tensor(2.)} for x, y in batches()]
    h = make_learner(Several(), data, data, loss_fn=None).fit(1)
    assert [*h.steps] == ['train_loss', 'train_loss_box', 'lr']       # not the batch's own 'scale'
    assert h.epochs['valid_loss_box'][0] > 0 and 'train_scale' not in h.epochs

def test_a_number_is_that_of_its_batch():
    seen = []
    def step(batch, learn):
        first = learn.model.bias[0]     # the optimizer writes to it
        seen.append(first.item())
        return {**two_losses(batch, learn), 'bias': first.clone(), 'updated': first}
    learn = made(step)
    steps = learn.fit(1).steps
    assert steps['train_bias'] == seen and len({*seen}) == 5
    assert steps['train_updated'] == [*seen[1:], learn.model.bias[0].item()]

def odd(res, batch, learn):
    i = learn.state.batch_idx
    return {'loss_aux': torch.tensor(float(i))} if learn.training and i % 2 else {}

def test_a_number_may_be_missing_in_a_batch():
    h = fitted(and_also(odd), batches())
    assert str(h.steps['train_loss_aux']) == '[nan, 1.0, nan, 3.0, nan]'
    assert h.epochs['train_loss_aux'] == [2.] and 'valid_loss_aux' not in h.epochs
    rare = and_also(lambda res, batch, learn: {} if learn.state.batch_idx else {'loss_rare': 2.})
    h = fitted(rare, train_dl=batches()*4)      # and is not taken for a loss that became nan
    assert h.bad_from is None and math.isnan(h.steps['train_loss_rare'][-1]) and h.epochs['train_loss_rare'] == [2.]

def test_a_key_that_stops_being_a_number_is_named_once():
    norm = and_also(lambda res, batch, learn: {'norm': torch.ones(()) if learn.state.batch_idx < 2 else torch.ones(3)})
    with pytest.warns(UserWarning, match="'norm' ends here") as found: h = fitted(norm)
    assert len(found) == 1 and h.steps['train_norm'][:2] == [1, 1]

def test_what_has_a_column_already_keeps_it():
    def more(res, batch, learn):
        learn.record('loss_ce', 5., mean=True)
        return {'accuracy': -1., 'right': -1.}
    def by_name(pred, targ): return {'right': accuracy(pred, targ), 'wrong': 1 - accuracy(pred, targ)}
    h = fitted(and_also(more), batches(), metrics=[accuracy, by_name])
    assert h.epochs['train_loss_ce'] == [5.] and 'train_loss_ce' not in h.steps
    for phase in 'train', 'valid':
        assert 0 <= h.epochs[f'{phase}_accuracy'][0] == pytest.approx(h.epochs[f'{phase}_right'][0])

def test_several_validation_sets():
    sets = {'a': batches(11, 2), 'b': batches(6, 3)}
    learn = made(and_also(lambda *args: {'a_loss': 1.}), sets)
    epochs = {k: v[0] for k, v in learn.fit(1).epochs.items()}
    assert epochs['valid_loss_ce'] == pytest.approx((11*epochs['valid_a_loss_ce'] + 6*epochs['valid_b_loss_ce'])/17)
    # not what the step calls so
    assert epochs['valid_a_loss'] == pytest.approx(sum(plain_means(learn.model, sets['a'])), rel=1e-5)

def test_a_step_that_yields_may_return_numbers():
    "And its losses are drawn as losses"
    def step(batch, learn):
        yield 'd', two_losses(batch, learn)['loss']
        return {'loss_d': 9., 'margin': 3.}
    model = linear()
    h = fitted(step, batches(), model=model, optim={'d': torch.optim.SGD(model.parameters(), .1)}, lr=None)
    assert h.epochs['train_margin'] == h.epochs['valid_margin'] == [3.] and h.epochs['train_loss_d'][0] != 9
    assert 'train_loss_d' in {o.name.split(',')[0] for o in Plot().chart(h.plot_data()).panels[0].lines}

def test_equal_in_two_processes():
    def few(res, batch, learn):     # in some shards only
        x = batch[0]
        return {'loss_few': x[:, 0].max()} if len(x) and (x[:, 0] > 1.2).any() else {}
    alone, learn = (made(and_also(few), batches(13, 2), seed=1) for _ in range(2))
    alone.fit(2)
    learn.launch(2, 2)
    for rows in 'steps', 'epochs':
        ours, theirs = getattr(alone.history, rows), getattr(learn.history, rows)
        assert ours.keys() == theirs.keys()
        for k in ours.keys() - {'time_s'}:
            if 'few' in k: assert [*map(math.isnan, theirs[k])] == [*map(math.isnan, ours[k])]
            else: assert theirs[k] == pytest.approx(ours[k], abs=1e-6), k

def test_nothing_waits_for_the_device():
    from test_no_sync import counted
    parts = and_also(lambda res, batch, learn: {**{f'loss_{i}': res['loss_ce']*i for i in range(5)}, 'lucky': 7.})
    counts = []
    for step, n in (one_loss, 1), (one_loss, 55), (parts, 55):    # the first fit of all warms up
        learn = made(step, train_dl=batches()*n)
        with counted() as seen: learn.fit(1)
        counts.append(dict(seen))
    assert counts[1] == counts[2]

@pytest.mark.parametrize('sets', [False, True])
def test_a_part_of_another_size_does_not_flatten_the_loss(sets):
    "The panel of the losses has the whole loss alone; its parts are drawn beside it, like metrics"
    large = and_also(lambda res, batch, learn: {'loss_reg': 1000 + res['loss_reg']})
    h = fitted(large, {'a': batches(), 'b': batches()} if sets else batches(), n_epochs=3)
    losses, *beside = Plot().chart(h.plot_data()).panels
    assert losses.ylim[1] < 100 and not any('reg' in o.name or 'ce' in o.name for o in losses.lines)
    drawn = {line.name for panel in beside for line in panel.lines}
    assert {'loss_ce', 'loss_reg'} <= drawn or sets and 'not drawn' in ''.join(p.note or '' for p in beside)

class Total:
    "A metric object: how many predictions are positive; a copy must compute what is so far"
    def reset(self): self.n = 0
    def update(self, pred, targ): self.n = self.n + (pred > 0).sum()
    def compute(self):
        n, self.n = self.n, None
        return n

def test_a_hook_reads_means_so_far():
    "At a pass's end they are its values, and nobody notices"
    said = []
    learns = [made(valid_dl=batches(), metrics=[accuracy, Total()], hooks=[LambdaHook(after_step=o)])
              for o in (lambda learn: None, lambda learn: said.append(learn.means()))]
    for learn in learns: h = learn.fit(1)
    assert digest(learns[0]) == digest(learns[1]) and learn.means() == {}
    means = [weighted(h.steps['train_loss_ce'][:i]) for i in range(1, 6)]
    assert [o['train_loss_ce'] for o in said[:5]] == pytest.approx(means)
    assert said[9].items() <= h.epoch_rows[0].items()
    assert {*said[1]} == {f'train_{o}' for o in ('loss', 'loss_ce', 'loss_reg', 'accuracy', 'Total')}

# a loss that is no tensor, or none at all

def test_a_loss_that_is_a_number():
    def score(batch, learn): return {'loss': two_losses(batch, learn)['loss'].item()}
    learn = make_learner(linear(), batches(), batches(), eval_step=score)
    h = learn.fit(1)
    assert h.epochs['valid_loss'][0] == pytest.approx(sum(plain_means(learn.model, batches())))
    assert learn.validate()['valid_loss'] == h.epochs['valid_loss'][0]
    with pytest.raises(TypeError, match=r'is a float: .*0-d tensor.* without .item\(\)'): fitted(score)

# values of one's own that survive resume

def test_resumed_in_another_learner(tmp_path):
    "With numbers that some batches lack, and a dict of one's own"
    states = []
    def make():
        states.append(state := {'seen': 0, 'mean': torch.zeros(4), 'log': []})
        def count(res, batch, learn):
            if learn.training:
                state['seen'] += len(batch[0])
                state['mean'] = .5*state['mean'] + .5*batch[0].mean(0)
                state['log'].append(state['seen'])
            return odd(res, batch, learn)
        return made(and_also(count), batches(13, 2), metrics=[accuracy], state=state)
    whole, first, second = (make() for _ in range(3))
    whole.fit(3)
    first.fit(3, hooks=[stop_when(lambda learn: learn.training and learn.history.n_steps == 7)])
    first.save(tmp_path/'half.pt')
    second.fit(3, resume=tmp_path/'half.pt')
    assert digest(second) == digest(whole) and second.history.returned == whole.history.returned
    a, b, c = states
    with second.dry_run() as r: r.train_batch()
    assert b['seen'] == 24 + 10
    assert a['seen'] == c['seen'] == 72 and torch.equal(a['mean'], c['mean']) and a['log'] == c['log']
    with pytest.raises(TypeError, match='n is a int without state_dict'):
        make_learner(state={'n': 1, 'layer': linear()})
