"Common mistakes: each is named, with what to do, before anything has changed, in at most 25 lines"
import copy, linecache, re, traceback, warnings
from functools import partial

import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from sklearn.metrics import f1_score
from torch import nn

from common import formatter, problem, same
from trainer_nb.all import LambdaHook, Learner, split
from trainer_nb.base.text import owner
from trainer_nb.loop.mistakes import is_samples

X, Y = problem()
R = X[:, 0]*2       # targets of a regression

def net(out=3): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, out))

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 3, batch_first=True)
    def forward(self, x): return self.rnn(x[:, None])

class Strict(nn.Linear):
    def forward(self, x): return super().forward(x)

class Elsewhere(nn.Linear):
    def forward(self, x): return super().forward(x) + torch.zeros(1, device='meta')

def nothing(pred, targ): pass
def table(pred, targ): return pred
def mae(pred, targ): return (pred - targ).abs().mean()
def only_pred(batch, learn): return {'pred': learn.model(batch[0]), 'targ': batch[1]}

class Silent(nn.Linear):
    def forward(self, x): super().forward(x)

class Listed(nn.Module):
    def __init__(self, n, n_out):
        super().__init__()
        self.layers, self.head = [nn.Linear(n, n)], nn.Linear(n, n_out)
    def forward(self, x): return self.head(self.layers[0](x))

def a_step(batch, learn):
    x, y = batch
    return {'loss': F.cross_entropy(learn.model(x), y)}

def with_backward(batch, learn, is_kept=False):
    res = a_step(batch, learn)
    res['loss'].backward(retain_graph=is_kept)
    if not is_kept: learn.opt.zero_grad()
    return res

LEARNER = dict(model=net, train_dl=lambda: (X, Y), valid_dl=lambda: (X, Y), loss_fn=F.cross_entropy)

def learner(**kwargs):
    kwargs = {k: v() if k in ('model', 'train_dl', 'valid_dl') and callable(v)
              and not isinstance(v, (type, nn.Module)) else v for k, v in {**LEARNER, **kwargs}.items()}
    return kwargs.pop('cls', Learner)(kwargs.pop('model'), **{'display': False, 'bs': 6, **kwargs})

IDS = torch.arange(120).view(24, 5) % 7

class Words(nn.Module):
    def __init__(self, n, n_places=5):
        super().__init__()
        self.embed, self.head, self.places = nn.Embedding(n, 4), nn.Linear(4, 7), nn.Embedding(n_places, 4)
    def forward(self, x): return self.head(self.embed(x) + self.places(torch.arange(x.size(1))))

def learner_first(learn, batch): return {'loss': learn.model(batch[0]).sum()}

def batch_as_input(batch, learn): return {'loss': learn.model(batch).sum()}

def model_first(model, batch): return {'loss': model(batch[0]).sum()}

class Picture(nn.Sequential):
    def __init__(self): super().__init__(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

class Rows(torch.utils.data.Dataset):
    def __init__(self, f): self.f = f
    def __len__(self): return 12
    def __getitem__(self, i): return self.f(i)

def picture(i):
    from PIL import Image
    return Image.new('RGB', (8, 8)), 0

def to_numpy(pred, targ): return float(pred.bfloat16().detach().numpy().mean())

IMAGES = dict(model=lambda: Picture(), train_dl=lambda: (torch.randn(24, 3, 8, 8), Y), valid_dl=None)
STEP_LR = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=.1), 1)

def on(*data, **kwargs): return dict(train_dl=lambda: data, **kwargs)

# what is wrong: arguments of the learner whose `fit` fails, patterns of the message and its notes
IN_FIT = {
    'a metric of two shapes': (dict(model=lambda: net(1), train_dl=lambda: (X, R), valid_dl=None, metrics=[mae],
        loss_fn=lambda pred, targ: F.mse_loss(pred.squeeze(-1), targ)),
        r'shape \(6, 1\) and targets of shape \(6,\) are broadcast', r'pred\.squeeze\(-1\)', 'raised in metric `mae`'),
    'a metric of two shapes in validation': (dict(model=lambda: net(1), train_dl=lambda: (X, R[:, None]),
        loss_fn=F.mse_loss, valid_dl=lambda: (X, R), eval_step=only_pred, metrics=[mae]),
        'are broadcast', 'in metric `mae`'),
    'one output and two targets': (dict(model=lambda: net(1), train_dl=lambda: (X, X[:, :2]), loss_fn=F.mse_loss),
        r'one output is compared with 2 targets', r'y\[\.\.\., :1\]'),
    'one output and a sum over targets': (dict(model=lambda: net(1), train_dl=lambda: (X, X),
        loss_fn=nn.L1Loss(reduction='sum')), r'one output is compared with 4 targets', 'give the model 4 outputs'),
    'a cross entropy of numbers': (dict(model=lambda: nn.Sequential(net(1), nn.Flatten(0)), train_dl=lambda: (X, R)),
        r'predictions of shape \(6,\) have one number for each sample', 'binary_cross_entropy_with_logits'),
    'a cross entropy of one class': (dict(model=lambda: net(1), train_dl=lambda: (X, Y*0)),
        r'predictions of shape \(6, 1\) have one number', r'F\.mse_loss'),
    'a metric that returns nothing': (dict(metrics=[nothing]), 'metric `nothing`.*NoneType',
        'expected a number'),
    'a metric that returns a table': (dict(metrics=[table]), r'metric `table`.*\(6, 3\)', 'expected a number'),
    'class targets in a column': (on(X, Y[:, None]), r'targets have shape \(6, 1\)', r'y\.squeeze\(1\)'),
    'one-hot class targets of ints': (on(X, F.one_hot(Y, 3)), r'targets have shape \(6, 3\)',
        r'y\.argmax\(1\)'),
    'a column against a row': (
        on(X, R[:, None], model=lambda: nn.Sequential(net(1), nn.Flatten(0)), loss_fn=nn.MSELoss()),
        r'\(6,\).*\(6, 1\) are broadcast', r'y\.squeeze\(-1\)'),
    'a row for a binary loss': (on(X, R, model=lambda: net(1), loss_fn=nn.BCEWithLogitsLoss()),
        r'shape \(6, 1\), and the targets \(6,\)', 'y.reshape'),
    'more outputs than targets': (on(X, R, model=lambda: net(2), loss_fn=F.mse_loss),
        r'\(6, 2\), and the targets \(6,\): give the model as many', r'targets, 1; .* loss_fn=F\.cross_entropy'),
    'fewer outputs than targets': (on(X, X, model=lambda: net(2), loss_fn=F.mse_loss),
        r'give the model as many outputs as a sample has targets, 4$'),
    'a batch of one tensor': (on(X), 'yielded a tuple of 1', r'for an autoencoder \(x, x\)'),
    'a step that passes its batch on': (dict(loss_fn=None, train_step=batch_as_input),
        r'if that is the batch, a tuple of 2, unpack it in the step, x, \*others = batch'),
    'a text as a label': (dict(train_dl=lambda: [(x, 'cat') for x in X]), "targets are texts such as 'cat'"),
    'texts as targets of numbers': (dict(train_dl=lambda: Rows(lambda i: (X[i], '3')), loss_fn=mae),
        "targets are texts such as '3'"),
    'whole numbers as inputs': (on(X.long(), Y), 'inputs are int64', r'x\.float\(\)'),
    'tensors on two devices': (dict(model=lambda: Elsewhere(4, 3)), 'device',
        'register_buffer|device=x.device'),
    'an empty batch': (dict(train_dl=lambda: [(X[:0], Y[:0]), (X, Y)]), 'first batch of train_dl is empty',
        'a filter, a sampler'),
    'a model that returns a tuple': (dict(model=lambda: Recurrent()), 'returned a tuple of 2', r'out\[0\]'),
    'classes in the last dimension': (
        on(IDS, IDS, model=lambda: Words(7)),
        r'predictions have shape \(6, 5, 7\), and cross_entropy takes the classes from dim',
        r'pred\.flatten\(0, 1\)'),
    'pixels with a dimension for the colour': (
        on(torch.randn(24, 1, 4, 4), Y[:, None, None, None].expand(24, 1, 4, 4), model=lambda: nn.Conv2d(1, 3, 1)),
        r'targets have shape \(6, 1, 4, 4\)', r'y\.squeeze\(1\)'),
    'ids that are too large': (on(IDS, IDS, model=lambda: Words(5)), 'from 0 to 6, and nn.Embedding has 5 rows',
        'num_embeddings is the largest id'),
    'float ids': (on(IDS.float(), IDS, model=lambda: Words(7)), 'nn.Embedding takes ids', r'x\.long\(\)'),
    'bools for a binary loss': (
        on(X, Y[:, None] > 0, model=lambda: net(1), loss_fn=F.binary_cross_entropy_with_logits), 'targets are bool',
        r'y\.float\(\)'),
    'one sample for BatchNorm': (
        on(X[:1], Y[:1], model=lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))),
        'BatchNorm needs two samples', 'drop_last=True'),
    'an entry that forward does not take': (
        dict(train_dl=lambda: [{'input': X, 'file': X, 'labels': Y}], model=lambda: nn.Linear(4, 3)),
        "goes to forward by name \\('input', 'file', 'labels'\\)", 'leave out'),
    'negative class ids': (on(X, Y - 1), 'targets are from -1 to 1', r'number the classes from 0\n'),
    'a table of positions that is too short': (on(IDS, IDS, model=lambda: Words(7, 3)),
        'ids in the inputs are from 0 to 6, and nn.Embedding has 3 or 7 rows', 'for a table of positions'),
    'a step that takes the learner first': (dict(loss_fn=None, train_step=learner_first),
        "no attribute 'model'", r'def step\(batch, learn\)'),
    'a step that takes the model': (dict(loss_fn=None, train_step=model_first),
        'not callable|not subscriptable', r'def step\(batch, learn\)'),
    'too many features': (on(torch.cat([X, X], 1), Y), 'inputs have 8 features', r'check in_features'),
    'more inputs than the model takes': (on(X, X, Y, model=lambda: Strict(4, 3)),
        'the last entry of a batch is its target', 'write a train_step'),
    'pictures of PIL': ({**IMAGES, 'train_dl': lambda: Rows(picture)}, 'samples are PIL images', 'ToTensor'),
    'images of several sizes': ({**IMAGES, 'train_dl': lambda: Rows(lambda i: (torch.randn(3, 8 + i, 8), 0))},
        'have several sizes', 'Resize.*collate_fn'),
    'texts as labels': (dict(train_dl=lambda: Rows(lambda i: (X[i], 'cat'))), "targets are texts such as 'cat'",
        r'sorted\(set\(labels\)\)'),
    'bfloat16 for NumPy': (dict(metrics=[to_numpy]), 'NumPy has no bfloat16', r'pred\.float\(\)'),
    'x and y swapped': (on(Y, X), r'takes the targets, float32 \(6, 4\), and not the inputs, int64 \(6,\)',
        'are x and y swapped'),
    'x and y of one shape': (on(X.long(), X), r'pass x\.float\(\)'),
    'layers in a list, and none that trains': (dict(model=lambda: Listed(4, 3).requires_grad_(False)),
        'no trainable parameters', r'nn\.ModuleList'),
    'logits for probabilities': (on(X, R[:, None], model=lambda: net(1), loss_fn=nn.BCELoss()),
        'takes probabilities, and the predictions are logits', r'F\.binary_cross_entropy_with_logits'),
    'a forward without return': (dict(model=lambda: Silent(4, 3)), 'the model returned None', 'with a return'),
    'a loss without return': (dict(loss_fn=nothing), "without 'loss', or loss_fn None"),
    'a step that calls backward': (dict(loss_fn=None, train_step=with_backward),
        'the step called backward, as the loop does', r'without loss\.backward\(\), opt\.step'),
    'a batch without labels': (dict(train_dl=lambda: [{'input': X}], valid_dl=None), 'no `labels` for loss_fn',
        'call the target so, or write a train_step'),
}

# what the learner itself refuses
AT_ONCE = {
    'a metric class': (dict(metrics=[nn.CrossEntropyLoss]),
        'metric <class .*CrossEntropyLoss.>: expected', 'an instance of a class'),
    'a function of scikit-learn': (dict(metrics=[f1_score]), 'metric `f1_score` of scikit-learn',
        r'Metric\(f1_score, whole=True\)'),
    'pairs of pictures': (dict(train_dl=lambda: [(torch.zeros(3, 8, 8),)*2]*5, loss_fn=F.mse_loss),
        r'pairs of shape \(3, 8, 8\) may hold samples, pictures, or batches of 3', 'batch_size=64', 'batch_size=None'),
    'a name of a loss': (dict(loss_fn='mse'), "loss_fn is 'mse'", r'nn\.MSELoss\(\)'),
    'a model class': (dict(model=nn.Flatten), 'model is the class Flatten', r'pass Flatten\(\.\.\.\)'),
    'text in a data frame': (on(pd.DataFrame({'a': [1., 2.], 'kind': ['x', 'y']}), pd.Series([0, 1])), "'kind'",
        'Leave them out.*get_dummies'),
    'a tensor alone': (dict(train_dl=lambda: X), 'Tensor alone is no loader',
        r'pass a tuple, \(inputs, targets\)'),
    'other lengths': (on(X, Y[:5]), r'\[24, 5\]', 'must agree'),
    'a scheduler as a hook': (dict(hooks=[STEP_LR]), 'StepLR object at .* is not a hook',
        r'LRScheduler\(lambda opt: StepLR'),
    'lists of arrays and labels': (on([*X.numpy()], Y.tolist()), 'tuple of 2 lists would be read as 2 batches',
        r'np\.stack\(x\)'),
    'a list of arrays': (on([*X.numpy()], Y.numpy()), 'would be read as 2 batches', r'np\.array\(y\)'),
    'lists of tensors': (on([*X], [*Y]), 'would be read as 2 batches', r'np\.array\(y\)'),
    'a name of a hook': (dict(hooks='EarlyStopping'), "'EarlyStopping' is not a hook", r'hooks=\[EarlyStopping\(\)\]'),
    'an array of texts': (on(X, np.array(['cat']*24)), 'holds texts such as .*cat', 'np.unique'),
}

# what other cells refuse
CELLS = {
    'fit(epochs=)': ({}, 'learn.fit(epochs=3)', 'fit has no argument `epochs`', 'n_epochs'),
    '.fine_tune': ({}, 'learn.fine_tune(3)', "no attribute 'fine_tune'", r'learn\.fit'),
    'one image': (IMAGES, 'learn.predict(torch.zeros(3, 8, 8))',
        r'shape \(3, 8, 8\), without a dimension for samples', r'x\[None\]'),
    'one image with a step': ({**IMAGES, 'loss_fn': None, 'train_step': a_step}, 'learn.predict(torch.zeros(3, 8, 8))',
        r'def predict_step\(batch, learn\): return learn\.model\(batch\)', r'for one sample predict\(x\[None\]\)'),
    'one row': ({}, 'learn.predict(torch.zeros(4))', r'For one sample pass x\[None\]'),
    'a forward without return, to predict': (dict(model=lambda: Silent(4, 3)), 'learn.predict(torch.zeros(5, 4))',
        'the model returned None'),
    'history[name]': ({}, "learn.history['valid_loss']", 'History holds several tables',
        r"learn\.history\.epochs\['valid_loss'\]"),
}

MISTAKES = {**{k: (a, 'learn.fit(1)', *b) for k, (a, *b) in IN_FIT.items()},
            **{k: (a, None, *b) for k, (a, *b) in AT_ONCE.items()}, **CELLS}

def state(learn):
    "What must not change"
    params = [p.detach().clone() for p in learn.model.parameters()]
    return params, copy.copy(learn.state), len(learn.history), learn.history.n_steps, [*learn.hooks], copy.deepcopy(
        learn.opt.state_dict())

def assert_same(a, b):
    assert same(a[0], b[0]) and a[1:5] == b[1:5] and str(a[5]) == str(b[5])

def run(code, **names):
    "The exception of a cell"
    linecache.cache['<cell>'] = len(code), None, [code + '\n'], '<cell>'
    with pytest.raises(Exception) as e: exec(compile(code, '<cell>', 'exec'), names)
    return e.value

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('kwargs, code, patterns', [(a, b, c) for a, b, *c in MISTAKES.values()], ids=MISTAKES)
def test_mistake(kwargs, code, patterns):
    if code is None: e, learn = run('learner(**kwargs)', learner=learner, kwargs=kwargs), None
    else:
        learn = learner(**kwargs)
        before = state(learn)
        e = run(code, learn=learn, torch=torch)
    text = '\n'.join([str(e), *getattr(e, '__notes__', [])])
    for o in patterns: assert re.search(o, text, re.M), f'{o!r} is not in: {text}'
    if learn is not None and 'metrics' not in kwargs: assert_same(before, state(learn))     # these see whole batches
    lines = formatter().text(type(e), e, e.__traceback__.tb_next).splitlines()
    assert len(lines) <= 25, '\n'.join(lines)
    assert not any(owner(o.filename) == 'torch' for o in traceback.extract_tb(e.__traceback__))
    assert (code is None or 'fit' not in code or e.full_traceback)


# What is put right

def test_pairs_are_split_by_their_last_entry():
    train, valid = split([(X[i], i % 3) for i in range(24)], valid=.25, stratify=True)
    assert [sum(y == k for _, y in valid) for k in range(3)] == [2, 2, 2] and len(train) == 18
    (_, y), (_, y_valid) = split((X, Y), valid=.25, stratify=True)
    assert y_valid.bincount().tolist() == [2, 2, 2]
    kinds = [(i % 2, i % 3) for i in range(24)]         # classes of two parts each
    assert sorted(kinds[i] for i in split(list(range(24)), valid=.25, stratify=kinds)[1]) == sorted({*kinds})

def test_a_loader_that_begins_anew_may_be_its_own_iterator():
    class Again:
        def __iter__(self):
            self.rest = [(X, Y)]*2
            return self
        def __next__(self):
            if not self.rest: raise StopIteration
            return self.rest.pop()
    learn = learner(train_dl=Again(), valid_dl=None)
    learn.fit(2)
    assert learn.history.n_steps == 4
    learner(train_dl=(o for o in [(X, Y)]), valid_dl=None).fit(1)

def test_a_list_of_samples_with_vectors_as_targets_is_batched():
    "Each sample was a batch of its own"
    learn = learner(model=lambda: nn.Linear(4, 3), train_dl=[(x, x[:3]) for x in X], valid_dl=None, loss_fn=F.mse_loss)
    learn.fit(1)
    assert len(learn.history.steps['train_loss']) == 4 and learn.state.samples_seen == 24
    for batch in (X[:, 0], Y), (X[:, 0], R), (X, X[:, :3]), (IDS[0], torch.arange(2), Y[:2]), (IDS[0], R):
        assert not is_samples([batch]*2)

class Ends(nn.Module):
    "A model of one output that ends with a function"
    def __init__(self, f):
        super().__init__()
        self.layer, self.f = nn.Linear(4, 1), f
    def forward(self, x): return self.f(self.layer(x)).squeeze(1)

def ends(f): return lambda: nn.Sequential(net(), f)

def binary(f, loss_fn): return on(X, (X[:, 0] > 0).float(), valid_dl=None, model=lambda: Ends(f), loss_fn=loss_fn)

BCE, NLL = F.binary_cross_entropy_with_logits, F.nll_loss
# arguments of the learner whose first batch is warned of, once, and the words; none where all is right
WARNED = {
    'softmax, cross_entropy': (dict(model=ends(nn.Softmax(1))), 'sum to 1.*takes logits.*Leave out the softmax'),
    'softmax, module': (dict(model=ends(nn.Softmax(1)), loss_fn=nn.CrossEntropyLoss()), 'Leave out the softmax'),
    'sigmoid, cross_entropy': (dict(model=ends(nn.Sigmoid())), 'cross_entropy takes logits.*Leave out the sigmoid'),
    'sigmoid, bce': (binary(torch.sigmoid, BCE), 'with_logits takes.*Leave out the sigmoid'),
    'sigmoid, partial': (binary(nn.Sigmoid(), partial(BCE, pos_weight=torch.ones(()))), 'Leave out the sigmoid'),
    'sigmoid, binary module': (binary(nn.Sigmoid(), nn.BCEWithLogitsLoss()), 'Leave out the sigmoid'),
    'nll of logits': (dict(loss_fn=NLL), r'takes log-probabilities.*F\.cross_entropy for logits'),
    'nll of a softmax': (dict(model=ends(nn.Softmax(1)), loss_fn=nn.NLLLoss()), r'nn\.LogSoftmax\(1\)'),
    'a layer in a list': (dict(model=lambda: Listed(4, 3)), r'outside the model.*belong in an nn\.ModuleList'),
    'a graph that is kept': (dict(loss_fn=None, train_step=partial(with_backward, is_kept=True), valid_dl=None),
        r'gradients before the first backward.*without loss\.backward'),
    'right': ({}, None),
    'right, nll': (dict(model=ends(nn.LogSoftmax(1)), loss_fn=NLL), None),
    'right, a log_softmax': (dict(model=ends(nn.LogSoftmax(1))), None),
    'right, logits': (binary(nn.ReLU(), BCE), None),
    'right, a gate': (binary(lambda x: x.sigmoid()*x, BCE), None),
    'right, bce': (binary(nn.Sigmoid(), nn.BCELoss()), None),
    'right, a step': (dict(loss_fn=None, train_step=a_step), None),
}

@pytest.mark.parametrize('kwargs, words', WARNED.values(), ids=WARNED)
def test_what_the_first_batch_warns_of(kwargs, words):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        learner(**kwargs).fit(2)
    texts = [str(o.message) for o in seen]
    assert len(texts) == bool(words) and (not words or re.search(words, texts[0])), texts

def test_right_targets_pass(loss_fn=nn.CrossEntropyLoss(label_smoothing=.1)):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for y in Y, F.one_hot(Y, 3).float(), F.softmax(X[:, :3], 1):
            learner(train_dl=(X, y), valid_dl=None, loss_fn=loss_fn).fit(1)


# The first batch

def notes(e): return '\n'.join(getattr(e, '__notes__', ()))

def test_errors_that_only_look_like_known_ones():
    "They got the notes of a learner in the place of the batch, and of ids beyond an embedding"
    def own_index(batch, learn): return [1][7]
    def own_attribute(batch, learn): return batch.device
    for step, text in (own_index, 'list index'), (own_attribute, 'device'):
        with pytest.raises((IndexError, AttributeError), match=text) as e:
            learner(loss_fn=None, train_step=step).fit(1)
        assert 'def step' not in notes(e.value)
    class Lists(Words):
        def forward(self, x): return [1][7]
    with pytest.raises(IndexError, match='list index') as e: learner(model=lambda: Lists(7), train_dl=(IDS, IDS)).fit(1)
    assert 'nn.Embedding' not in notes(e.value)

def test_a_mistake_in_a_hook_is_not_explained_by_the_batch():
    "What a hook adds up may have another shape than the last batch: nothing is wrong with predictions or targets"
    seen = []
    def add_up(learn): seen.append(sum(seen, 0) + learn.pred.detach())
    x, y = torch.randn(20, 4), torch.zeros(20, dtype=torch.long)
    learn = Learner(nn.Linear(4, 2), (x, y), loss_fn=F.cross_entropy, bs=16, display=False,
                    hooks=[LambdaHook(after_pred=add_up)])
    with pytest.raises(RuntimeError, match='must match the size') as e: learn.fit(1)
    assert 'raised in hook' in e.value.__notes__[0] and not any('predictions' in o for o in e.value.__notes__)

def test_a_rate_and_a_number_of_epochs_are_no_attributes():
    "They would have no effect; a subclass may have its own"
    with pytest.raises(AttributeError, match=r'learn\.set_lr\(.01\)'): learner().lr = 1
    with pytest.raises(AttributeError, match=r'learn\.fit\(3\)'): learner().epochs = 1
    class Mine(Learner): pass
    mine = learner(cls=Mine)
    mine.lr = 6
    assert mine.lr == 6
