"What readers of the four documents type first: it runs, or its error has what works here"
import re

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import Share, batches, make_learner, problem, same, weights
from trainer_nb.all import Checkpoint, EarlyStopping, LambdaHook, Learner, Metric, Profile, accuracy
from trainer_nb.loop.hooks import STEPS

X, Y = problem()

def step(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}

def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 3)

def learner(*hooks, **kwargs): return make_learner(linear(), **{'train_dl': batches(), 'hooks': hooks, **kwargs})

def subclass(**members): return type('Mine', (Learner,), members)

class Plain:
    def after_step(self, learn): pass

NAMES = {       # what is written → what the error says
    'def test_step': (lambda: subclass(test_step=step), 'defines `test_step`, which .* it is `eval_step`'),
    'def metrics': (lambda: subclass(metrics=property(lambda self: [])), r'`metrics`.*Learner\(..., metrics=\[...\]\)'),
    'def after_epoch': (lambda: subclass(after_epoch=lambda self: None), 'a method of a Hook'),
    'test_step=': (lambda: learner(test_step=step), 'here it is `eval_step`'),
    'h.history': (lambda: learner().fit(1).history['loss'], r"epochs\['train_loss'\]"),
    "h['val_loss']": (lambda: learner(valid_dl=batches()).fit(1)['val_loss'], r"epochs\['valid_loss'\]"),
    'a step by position': (lambda: Learner(linear(), step, batches(), batches(), epochs=3), 'train_step=f'),
    'is_distributed': (lambda: learner().is_distributed, 'learn.state.num_processes'),
    'accelerator': (lambda: learner().accelerator, r'the hook Accelerate\(\)'),
    'start_epoch': (lambda: learner().fit(3, start_epoch=1), r'fit\(n, resume=True\)'),
    'a plain class': (lambda: learner(Plain()), r'subclass Hook, class Plain\(Hook\)'),
    'max_to_keep': (lambda: Checkpoint('x', max_to_keep=3), 'here it is keep'),
    'save_best_only': (lambda: Checkpoint('x', save_best_only=True), 'here it is best_only=True'),
    'restore_best_weights': (lambda: EarlyStopping(restore_best_weights=True), 'here it is restore_best'),
    'a folder of traces': (lambda: Profile(trace='logs'), "such as 'logs/trace.json'"),
}

@pytest.mark.parametrize('name', NAMES)
def test_a_name_from_elsewhere(name):
    write, words = NAMES[name]
    with pytest.raises((TypeError, AttributeError, ValueError)) as e: write()
    assert re.search(words, str(e.value)) and '\n' not in str(e.value)


# Keras

@pytest.mark.parametrize('optim, lr, words', [
    (None, None, ['AdamW, lr 0.001 (its default)']), (torch.optim.SGD, .01, []),
    ({'a': torch.optim.SGD, 'b': torch.optim.Adam}, {'a': .1}, ['Adam, lr 0.001 (its default)'])])
def test_the_first_line_names_a_rate_that_is_a_default(optim, lr, words, monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '120')
    net = nn.ModuleDict({'a': linear(), 'b': linear()})
    def both(batch, learn): return {'loss': sum(F.cross_entropy(o(batch[0]), batch[1]) for o in net.values())}
    make_learner(net, batches(), train_step=both, optim=optim, lr=lr, display='tty').fit(1)
    assert re.findall(r'\w+, lr [\d.]+ \(its default\)', capsys.readouterr().out) == words

@pytest.mark.parametrize('is_watched', [True, False])
def test_a_running_value_of_a_step_is_no_mean(is_watched, recwarn):
    "The column of the metric is its value; that of the step a mean of running ones, which is said if it can be seen"
    share = Share()
    def running(batch, learn):
        res = step(batch, learn)
        share.update(res['pred'], res['targ'])
        return {**res, 'share': share.compute()}
    metrics = [Metric(share, name='right'), accuracy] if is_watched else [accuracy]
    epochs = learner(train_step=running, metrics=metrics).fit(1).epochs
    assert ['metric right has computed' in str(o.message) for o in recwarn] == [True]*is_watched
    assert epochs['train_share'] != epochs['train_accuracy']
    if is_watched: assert epochs['train_right'] == pytest.approx(epochs['train_accuracy'])


# trainer_tools

@pytest.mark.parametrize('name', STEPS)
def test_a_step_is_not_assigned(name):
    "But wrapped by a hook, or overridden"
    learn = learner(LambdaHook(before_fit=lambda learn: setattr(learn, name, lambda *args: None)))
    before = weights(learn.model)
    with pytest.raises(AttributeError, match=rf'LambdaHook\({name}=f\) .* def {name}\(self'): learn.fit(1)
    assert same(weights(learn.model), before)
    calls, learns = [], [learner(), learner(LambdaHook(**{name: lambda learn, nxt: calls.append('hook') or nxt()}))]
    def own(self, *args): return calls.append('method') or getattr(Learner, name)(self, *args)
    learns.append(learner(cls=subclass(**{name: own})))
    for o in learns: o.fit(1)
    assert all(same(weights(o.model), weights(learns[0].model)) for o in learns)
    assert calls.count('hook') == calls.count('method') == 5


# Early stopping

FALLS = [9., 8., 7., 6., 5., 4.]
SINCE = r'{} has not improved{} since epoch {} \(patience 3\); {}'

@pytest.mark.parametrize('losses, kwargs, words, kept', [
    ([*FALLS, 5., 5., 5.], {}, 'after epoch 8 of 50: ' + SINCE.format('valid_loss', '', 5, 'you have .* epoch 5'), 5),
    ([*FALLS, 5., 5., 5.], {'restore_best': False}, SINCE.format('valid_loss', '', 5, '.* keeps its last'), 8),
    ([*FALLS, 3.9, 3.8, 3.7], {'min_delta': .5}, SINCE.format('valid_loss', ' by .* 0.5', 5, 'you have .* epoch 5'), 5),
    # equal, with a lower loss each time
    ([9., 8., 7., 6.], {'monitor': 'valid_loss_2'}, SINCE.format('valid_loss_2', '', 0, '.* weights of epoch 3'), 3),
    ([torch.nan]*3, {}, 'after epoch 2 of 50: .* not been finite; .* keeps its last', 2),
    ([4., 5., 5., 5.], {'n_epochs': 4}, r'valid_loss was best in epoch 0 \(4\); .* restored', 0)])
@pytest.mark.filterwarnings('ignore:valid_loss is nan')
def test_early_stopping_says_why(losses, kwargs, words, kept, capsys):
    "And ends with the weights of one epoch"
    each, values, options = [], iter(losses), {'n_epochs': 50, **kwargs}
    n_epochs = options.pop('n_epochs')
    def eval_step(batch, learn): return {'loss': torch.tensor(next(values)), 'loss_2': 1., 'n': 1}
    learn = learner(EarlyStopping(3, **options), valid_dl=[batches()[0]], eval_step=eval_step)
    learn.add_hook(LambdaHook(after_epoch=lambda learn: each.append(weights(learn.model))))
    learn.fit(n_epochs)
    text = capsys.readouterr().out
    assert text.count('EarlyStopping: ') == 1 and re.search(words, text)
    assert [i for i, o in enumerate(each) if same(o, weights(learn.model))] == [kept]
    assert ('stopped early' in text) == (learn.state.epoch < n_epochs)


# Labels

@pytest.mark.parametrize('dtype', ['int32', 'uint8'])
def test_labels_of_smaller_integers_are_int64(dtype, capsys):
    "Inputs, tensors, and the only array stay"
    def fitted(y):
        learn = learner(train_dl=(X.numpy(), y), valid_dl=(X.numpy(), y), bs=8, seed=0, metrics=[accuracy])
        learn.fit(1)
        return learn
    y = Y.numpy()
    assert same(weights(fitted(y.astype(dtype)).model), weights(fitted(y).model)) and not capsys.readouterr().out
    x, y = y.astype(dtype), Y.to(getattr(torch, dtype))
    learn = learner(train_dl=(x, x, y))
    assert [*learn.train_dl.dtypes] == [y.dtype]*3 and learn.loader_for((x,)).dtypes == [y.dtype]

def test_the_advice_for_an_array_is_an_arrays():
    for make, words in (torch.Tensor.numpy, "y.astype('int64')"), (torch.Tensor.clone, 'y.long()'):
        with pytest.raises(RuntimeError) as e: learner(train_dl=(make(X), make(Y.float()))).fit(1)
        assert f'class ids are int64: pass {words}' in e.value.__notes__[0]
