"Common mistakes: each is named, with what to do, before anything has changed, in at most 25 lines"
import copy, linecache, re, traceback
from functools import partial

import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import formatter, problem, same, told
from trainer_nb.all import LambdaHook, Learner
from trainer_nb.base.text import owner

X, Y = problem()
R = X[:, 0]*2       # targets of a regression
IDS = torch.arange(120).view(24, 5) % 7

def net(out=3): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, out))

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 3, batch_first=True)
    def forward(self, x): return self.rnn(x[:, None])

class Elsewhere(nn.Linear):
    def forward(self, x): return super().forward(x) + torch.zeros(1, device='meta')

class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = [nn.Linear(4, 4)], nn.Linear(4, 3)
    def forward(self, x): return self.head(self.layers[0](x))

class Words(nn.Module):
    def __init__(self, n, n_places=5):
        super().__init__()
        self.embed, self.head, self.places = nn.Embedding(n, 4), nn.Linear(4, 7), nn.Embedding(n_places, 4)
    def forward(self, x): return self.head(self.embed(x) + self.places(torch.arange(x.size(1))))

class Rows(torch.utils.data.Dataset):
    def __init__(self, f): self.f = f
    def __len__(self): return 12
    def __getitem__(self, i): return self.f(i)

class Ends(nn.Module):
    "A model of one output that ends with a function"
    def __init__(self, f):
        super().__init__()
        self.layer, self.f = nn.Linear(4, 1), f
    def forward(self, x): return self.f(self.layer(x)).squeeze(1)

def ends(f): return nn.Sequential(net(), f)
def of_images(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))

def nothing(pred, targ): pass
def mae(pred, targ): return (pred - targ).abs().mean()
def to_numpy(pred, targ): return float(pred.bfloat16().detach().numpy().mean())

def a_step(batch, learn):
    x, y = batch
    return {'loss': F.cross_entropy(learn.model(x), y)}

def batch_as_input(batch, learn): return {'loss': learn.model(batch).sum()}
def learner_first(learn, batch): return {'loss': learn.model(batch[0]).sum()}

def with_backward(batch, learn):
    res = a_step(batch, learn)
    res['loss'].backward(retain_graph=True)
    return res

def yields(*names):
    def step(batch, learn):
        res = a_step(batch, learn)
        for name in names: yield name, res['loss']
        return res
    return step

def on(*data, model=net, **kwargs):
    "Arguments of a learner of this data, or of the usual one"
    return dict(train_dl=data or (X, Y), model=model, **kwargs)

def with_step(step, **kwargs): return on(train_step=step, loss_fn=None, **kwargs)

def learner(kwargs):
    options = {'loss_fn': F.cross_entropy, 'display': False, 'bs': 6, **kwargs}
    return Learner(options.pop('model')(), **options)

IMAGES = on(torch.randn(24, 3, 8, 8), Y, model=of_images)
BY_NAME = {'0': torch.optim.SGD}
STEP_LR = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=.1), 1)

# what is wrong: arguments of the learner whose `fit` fails, patterns of the message and its notes
IN_FIT = {
    'a metric of two shapes': (
        on(X, R, model=partial(net, 1), metrics=[mae], loss_fn=lambda pred, targ: F.mse_loss(pred.squeeze(-1), targ)),
        r'\(6, 1\).*\(6,\) are broadcast', r'pred\.squeeze\(-1\)', 'metric `mae`'),
    'a metric that returns nothing': (on(metrics=[nothing]), 'metric `nothing`.*NoneType', 'expected a number'),
    'class targets in a column': (on(X, Y[:, None]), r'targets have shape \(6, 1\)', r'y\.squeeze\(1\)'),
    'one-hot class targets of ints': (on(X, F.one_hot(Y, 3)), r'targets have shape \(6, 3\)', r'y\.argmax\(1\)'),
    'a row for a binary loss': (on(X, R, model=partial(net, 1), loss_fn=nn.BCEWithLogitsLoss()),
                                r'shape \(6, 1\), and the targets \(6,\)', 'y.reshape'),
    'a batch of one tensor': (on(X), 'a tuple of 1', r'for an autoencoder \(x, x\)'),
    'a step that passes its batch on': (with_step(batch_as_input), 'a tuple of 2, unpack it', r'x, \*others = batch'),
    'texts as labels': (on(*[(x, 'cat') for x in X]), "targets are texts such as 'cat'", r'sorted\(set\(labels\)\)'),
    'whole numbers as inputs': (on(X.long(), Y), 'inputs are int64', r'x\.float\(\)'),
    'tensors on two devices': (on(model=partial(Elsewhere, 4, 3)), 'device', 'register_buffer|device=x.device'),
    'an empty batch': (on((X[:0], Y[:0]), (X, Y)), 'first batch of train_dl is empty', 'a filter, a sampler'),
    'a model that returns a tuple': (on(model=Recurrent), 'returned a tuple of 2', r'out\[0\]'),
    'classes in the last dimension': (on(IDS, IDS, model=partial(Words, 7)), 'takes the classes from dim',
                                      r'pred\.flatten\(0, 1\)'),
    'ids that are too large': (on(IDS, IDS, model=partial(Words, 5)), '0 to 6.* 5 rows', 'num_embeddings'),
    'a table of positions that is too short': (on(IDS, IDS, model=partial(Words, 7, 3)), '3 or 7 rows', 'positions'),
    'float ids': (on(IDS.float(), IDS, model=partial(Words, 7)), 'nn.Embedding takes ids', r'x\.long\(\)'),
    'bools for a binary loss': (
        on(X, Y[:, None] > 0, model=partial(net, 1), loss_fn=F.binary_cross_entropy_with_logits),
        'targets are bool', r'y\.float\(\)'),
    'one sample for BatchNorm': (on(X[:1], Y[:1], model=lambda: ends(nn.BatchNorm1d(3))), 'two samples', 'drop_last'),
    'an entry that forward does not take': (
        on({'input': X, 'file': X, 'labels': Y}, model=partial(nn.Linear, 4, 3)), 'by name .*file', 'leave out'),
    'a step that takes the learner first': (with_step(learner_first), "attribute 'model'", r'step\(batch, learn\)'),
    'too many features': (on(torch.cat([X, X], 1), Y), 'inputs have 8 features', 'in_features'),
    'more inputs than the model takes': (on(X, X, Y), 'last entry of a batch', 'write a train_step'),
    'pictures of PIL': ({**IMAGES, 'train_dl': Rows(lambda i: (Image.new('RGB', (8, 8)), 0))}, 'PIL images',
                        'ToTensor'),
    'images of several sizes': ({**IMAGES, 'train_dl': Rows(lambda i: (torch.randn(3, 8 + i, 8), 0))},
                                'several sizes', 'Resize.*collate_fn'),
    'bfloat16 for NumPy': (on(metrics=[to_numpy]), 'NumPy has no bfloat16', r'pred\.float\(\)'),
    'nothing that trains': (on(model=lambda: Listed().requires_grad_(False)), 'no trainable', r'nn\.ModuleList'),
    'a loss without return': (on(loss_fn=nothing), "without 'loss', or loss_fn None"),
    'a step without a dict': (with_step(lambda batch, learn: learn.model(batch[0]).mean()), 'returned a Tensor',
                              "dict with at least 'loss'"),
    'a loss for no optimizer': (with_step(yields('1'), optim=BY_NAME), "optimizer '1'; there are '0'"),
    'a loss twice': (with_step(yields(), optim=BY_NAME), "returns a 'loss'", 'leave'),
    'a loader that is used up': ({**on(), 'train_dl': iter(())}, 'train_dl', 'used up'),
    'fewer samples than a batch': (
        {**on(), 'valid_dl': DataLoader(TensorDataset(X, Y), 25, drop_last=True)}, 'valid_dl is empty', 'drop_last'),
    'a batch without labels': (on({'input': X}), 'no `labels` for loss_fn', 'or write a train_step'),
}

# what the learner itself refuses
AT_ONCE = {
    'text in a data frame': (on(pd.DataFrame({'a': [1.], 'kind': ['x']}), pd.Series([0])), "'kind'", 'get_dummies'),
    'a tensor alone': ({**on(), 'train_dl': X}, 'no targets', r'a tuple, \(inputs, targets\)'),
    'other lengths': (on(X, Y[:5]), r'\[24, 5\]', 'must agree'),
    'a scheduler as a hook': (on(hooks=[STEP_LR]), 'is not a hook', r'LRScheduler\(lambda opt: StepLR'),
    'lists of arrays and labels': (on([*X.numpy()], Y.tolist()), 'read as 2 batches', r'np\.stack\(x\)'),
    'an array of texts': (on(X, np.array(['cat']*24)), 'holds texts such as .*cat', 'np.unique'),
}

# what other cells refuse
CELLS = {
    'no validation set': (on(), 'learn.validate()', 'no valid_dl'),
    'one image': (IMAGES, 'learn.predict(torch.zeros(3, 8, 8))', 'without a dimension for samples', r'x\[None\]'),
    'one image with a step': (
        {**IMAGES, 'loss_fn': None, 'train_step': a_step}, 'learn.predict(torch.zeros(3, 8, 8))',
        r'def predict_step\(batch, learn\)', r'predict\(x\[None\]\)'),
}

MISTAKES = {**{k: (a, 'learn.fit(1)', *b) for k, (a, *b) in IN_FIT.items()},
            **{k: (a, None, *b) for k, (a, *b) in AT_ONCE.items()}, **CELLS}

def state(learn):
    "What must not change"
    return ([p.detach().clone() for p in learn.model.parameters()], copy.copy(learn.state), learn.history.n_steps,
            [*learn.hooks], str([o.state_dict() for o in learn.opts.values()]))

def run(code, **names):
    "The exception of a cell"
    linecache.cache['<cell>'] = len(code), None, [code + '\n'], '<cell>'
    with pytest.raises(Exception) as e: exec(compile(code, '<cell>', 'exec'), names)
    return e.value

def notes(e): return '\n'.join(getattr(e, '__notes__', ()))

@pytest.mark.filterwarnings('ignore:Using a target size')
@pytest.mark.parametrize('kwargs, code, patterns', [(a, b, c) for a, b, *c in MISTAKES.values()], ids=MISTAKES)
def test_mistake(kwargs, code, patterns):
    if code is None: e = run('learner(kwargs)', learner=learner, kwargs=kwargs)
    else:
        learn = learner(kwargs)
        before = state(learn)
        e = run(code, learn=learn, torch=torch)
        if 'metrics' not in kwargs:     # these see whole batches
            after = state(learn)
            assert same(before[0], after[0]) and before[1:] == after[1:]
    text = f'{e}\n{notes(e)}'
    for o in patterns: assert re.search(o, text, re.M), f'{o!r} is not in: {text}'
    lines = formatter().text(type(e), e, e.__traceback__.tb_next).splitlines()
    assert len(lines) <= 25, '\n'.join(lines)
    assert not any(owner(o.filename) == 'torch' for o in traceback.extract_tb(e.__traceback__))
    assert (code is None or 'fit' not in code or e.full_traceback)

# arguments of a learner whose first batch is warned of, once, and the words; none where all is right
BCE, NLL = F.binary_cross_entropy_with_logits, F.nll_loss
WARNED = {
    'softmax': (on(model=lambda: ends(nn.Softmax(1)), loss_fn=nn.CrossEntropyLoss()), 'Leave out the softmax'),
    'sigmoid': (on(model=lambda: ends(nn.Sigmoid())), 'Leave out the sigmoid'),
    'sigmoid, bce': (on(X, R, model=lambda: Ends(torch.sigmoid), loss_fn=partial(BCE, pos_weight=torch.ones(()))),
                     'Leave out the sigmoid'),
    'nll of logits': (on(loss_fn=NLL), r'log-probabilities.*F\.cross_entropy for logits'),
    'a layer in a list': (on(model=Listed), r'outside the model.*nn\.ModuleList'),
    'a graph that is kept': (with_step(with_backward), 'gradients before the first backward'),
    'right, log_softmax': (on(model=lambda: ends(nn.LogSoftmax(1)), loss_fn=NLL), None),
    'right, logits': (on(X, R, model=lambda: Ends(nn.ReLU()), loss_fn=BCE), None),
    'right, a gate': (on(X, R, model=lambda: Ends(lambda x: x.sigmoid()*x), loss_fn=BCE), None),
    'right, bce': (on(X, (R > 0).float(), model=lambda: Ends(nn.Sigmoid()), loss_fn=nn.BCELoss()), None),
    'right, a step': (with_step(a_step), None),
    'right, one-hot': (on(X, F.one_hot(Y, 3).float(), loss_fn=nn.CrossEntropyLoss(label_smoothing=.1)), None),
    'right, soft targets': (on(X, F.softmax(X[:, :3], 1)), None),
}

@pytest.mark.parametrize('kwargs, words', WARNED.values(), ids=WARNED)
def test_what_the_first_batch_warns_of(kwargs, words):
    with told() as said: learner(kwargs).fit(2)
    assert len(said) == bool(words) and (not words or re.search(words, said[0])), said

def test_errors_that_only_look_like_known_ones():
    "A mistake in the step, in the model or in a hook is not explained by the batch"
    def own_index(batch, learn): return [1][7]
    def own_attribute(batch, learn): return batch.device
    class Lists(Words):
        def forward(self, x): return [1][7]
    seen = []
    def add_up(learn): seen.append(sum(seen, 0) + learn.pred.detach())
    for kwargs, words in [
            (with_step(own_index), 'def step'), (with_step(own_attribute), 'def step'),
            (on(IDS, IDS, model=partial(Lists, 7)), 'nn.Embedding'),
            (on(hooks=[LambdaHook(after_pred=add_up)], bs=16), 'predictions')]:
        with pytest.raises((IndexError, AttributeError, RuntimeError), match='list index|device|match the size') as e:
            learner(kwargs).fit(1)
        assert words not in notes(e.value)

def test_a_rate_and_a_number_of_epochs_are_no_attributes():
    "They would have no effect; a subclass may have its own"
    learn = learner(on())
    with pytest.raises(AttributeError, match=r'learn\.set_lr\(.01\)'): learn.lr = 1
    with pytest.raises(AttributeError, match=r'learn\.fit\(3\)'): learn.epochs = 1
    class Mine(Learner): pass
    mine = Mine(net(), (X, Y), loss_fn=F.cross_entropy, display=False)
    mine.lr = 6
    assert mine.lr == 6

def test_a_lazy_layer_needs_a_batch_before_a_dry_run():
    learn = Learner(nn.LazyLinear(3), (X, Y), loss_fn=F.cross_entropy, display=False)
    with pytest.raises(ValueError, match='call the model once'): learn.lr_find()
    learn.model(X)
    with learn.dry_run() as r: r.train_batch()
