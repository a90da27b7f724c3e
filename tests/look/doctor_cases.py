"""Set-ups for `learn.doctor()`: some with one bug each, 21 healthy

A bug is a function that makes a `Learner`, with the names of the findings that name it, and where it was reported. Bugs
without a link are of the kinds in the taxonomy of Humbatova et al. (2020, arXiv:1910.11015).
"""
from functools import cache, partial

import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from trainer_nb.all import AMP, EMA, Freeze, FreezeBN, GradAccum, GradClip, Learner, OneCycle, accuracy, set_seed

BUGS = {}           # name → (function, names of findings, source)
HEALTHY = {}        # name → function

def bug(*names, source='', **made):
    "Keep functions by name, as keyword arguments or as a decorator"
    def keep(f, name=''):
        BUGS[name or f.__name__] = f, set(names), source and f'https://github.com/{source}'
        return f
    for name, f in made.items(): keep(f, name)
    return keep

def healthy(f=None, **made):
    HEALTHY.update(made or {f.__name__: f})
    return f

@cache
def digits():
    "(x, y): 400 digits of 64 numbers, standardized, in random order; class ids"
    from sklearn.datasets import load_digits
    d = load_digits()
    at = torch.randperm(len(d.target), generator=torch.Generator().manual_seed(0))[:400]
    x = torch.tensor(d.data, dtype=torch.float32)
    return ((x - x.mean())/x.std())[at], torch.tensor(d.target)[at]

def split(x, y): return (x[:320], y[:320]), (x[320:], y[320:])

def changed(x, at, value):
    "A copy with other values somewhere"
    x = x.clone()
    x[at] = value
    return x

def rows(start, end): return tuple(o[start:end] for o in digits())

def column(i): return slice(None), i

def in_order(x, y, by):
    "Samples sorted by a key"
    at = by.sort(stable=True).indices
    return x[at], y[at]

def mlp(n_out=10, *last, n_in=64, act=nn.ReLU):
    return nn.Sequential(nn.Linear(n_in, 64), act(), nn.Linear(64, n_out), *last)

def make(model=None, x=None, y=None, loss_fn=F.cross_entropy, train=None, valid=None, optim=torch.optim.AdamW,
         lr=3e-3, **kwargs):
    "A healthy learner, but for what is given"
    xs, ys = digits()
    own_train, own_valid = split(xs if x is None else x, ys if y is None else y)
    set_seed(1)
    model = mlp() if model is None else model() if not isinstance(model, nn.Module) else model
    return Learner(model, own_train if train is None else train, own_valid if valid is None else valid, bs=32,
                   loss_fn=loss_fn, optim=optim, lr=lr, display=False, **kwargs)

def binary(): return (digits()[1] % 2).float()[:, None]

def price():
    "A regression target that the inputs tell, of mean 0 and deviation 1"
    x, _ = digits()
    y = x[:, 10:20].sum(1, keepdim=True) + x[:, 30:31]*x[:, 40:41]
    return (y - y.mean())/y.std()

def images(): return digits()[0].view(-1, 1, 8, 8)

def cnn(n_out=10, bn=True):
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8) if bn else nn.Identity(), nn.ReLU(), nn.Flatten(),
                         nn.Linear(288, n_out))

class Net(nn.Module):
    "A network of two layers with something between and after them"
    def __init__(self, between=F.relu, after=lambda x: x, n_out=10):
        super().__init__()
        self.body, self.head, self.between, self.after = nn.Linear(64, 64), nn.Linear(64, n_out), between, after

    def forward(self, x): return self.after(self.head(self.between(self.body(x))))


# what the output layer and the loss make of one another

bug('double_softmax', source='illiterate/BertClassifier/issues/2',
    softmax_before_cross_entropy=lambda: make(mlp(10, nn.Softmax(1))))
bug('double_softmax', softmax_function_in_forward=lambda: make(
    Net(after=lambda x: x.softmax(-1)), loss_fn=nn.CrossEntropyLoss(label_smoothing=.1)))
bug('double_sigmoid', source='avBuffer/UNet3plus_pth/issues/23', sigmoid_before_bce_with_logits=lambda: make(
    mlp(1, nn.Sigmoid()), y=binary(), loss_fn=F.binary_cross_entropy_with_logits))
bug('not_log_probabilities', source='AnubhavGupta3377/Text-Classification-Models-Pytorch/issues/9',
    nll_of_a_softmax=lambda: make(mlp(10, nn.Softmax(1)), loss_fn=F.nll_loss))
bug('not_log_probabilities', nll_of_logits=lambda: make(loss_fn=F.nll_loss))
bug('step_fails', cross_entropy_of_one_logit=lambda: make(mlp(1), y=binary()))
bug('loss_not_finite',
    log_of_zero=lambda: make(mlp(10, nn.Softmax(1)), loss_fn=lambda p, y: -(p*F.one_hot(y, 10)).log().mean()),
    root_of_zero=lambda: make(
        mlp(1), y=price(), loss_fn=lambda p, y: (p - y).square().mean() + 1e-3*(p - p).sqrt().mean()))

def weights_and(loss):
    "A loss of the weights, and something without a gradient"
    model = mlp()
    return make(model, loss_fn=lambda pred, y: loss(pred, y) + .01*sum(p.square().sum() for p in model.parameters()))

bug('detached_loss',
    loss_of_the_weights_only=lambda: weights_and(lambda pred, y: F.cross_entropy(pred.detach(), y)),
    loss_of_an_argmax=lambda: weights_and(lambda pred, y: (pred.argmax(1) != y).float().mean()))
bug('step_fails', loss_without_a_gradient=lambda: make(loss_fn=lambda pred, y: F.cross_entropy(pred.detach(), y)))


# parameters, gradients and optimizers

class Hidden(nn.Module):
    "Layers and parameters in a list or a dict, which torch does not find"
    def __init__(self, layers=(), scales=None):
        super().__init__()
        self.layers, self.scales, self.head = [*layers], scales or {}, nn.Linear(64, 10)

    def forward(self, x):
        for f in self.layers: x = f(x)
        for p in self.scales.values(): x = x*p
        return self.head(x)

bug('unregistered', source='pytorch/pytorch/issues/715',
    layers_in_a_list=lambda: make(lambda: Hidden([nn.Linear(64, 64), nn.ReLU()])))
bug('unregistered', source='pytorch/pytorch/issues/632',
    parameters_in_a_dict=lambda: make(lambda: Hidden(scales={'a': nn.Parameter(torch.ones(64))})))

@bug('not_in_optimizer', source='LaurentMazare/ocaml-torch/issues/36')
def optimizer_made_before_the_head():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    model.append(nn.Linear(64, 10))
    return make(model, optim=opt, lr=None)

class Unused(Net):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 64)

class NoGrad(Net):
    def forward(self, x):
        with torch.no_grad(): h = self.body(x).relu()
        return self.head(h)

def with_weights(init, bias=None, at=(0, 2)):
    "A network whose weights, and biases, are set by hand"
    model = mlp()
    for i in at:
        init(model[i].weight)
        if bias is not None: bias(model[i].bias)
    return model

def frozen(i):
    model = mlp()
    model[i].requires_grad_(False)
    return model

bug('no_gradient', source='pytorch/pytorch/issues/40983',
    detached_features=lambda: make(Net(between=lambda x: x.detach().relu())))
bug('no_gradient', source='wagonhelm/NaNmnist/issues/2',
    weights_of_zero=lambda: make(with_weights(nn.init.zeros_, bias=nn.init.zeros_)))
bug('no_gradient', layer_that_nobody_calls=lambda: make(Unused), no_grad_body=lambda: make(NoGrad),
    argmax_in_the_middle=lambda: make(Net(between=lambda x: F.one_hot(x.argmax(1), 64).float())))
bug('cannot_overfit',
    outputs_of_almost_nothing=lambda: make(Net(after=lambda x: x*1e-4)),
    lr_of_sgd_far_too_low=lambda: make(optim=torch.optim.SGD, lr=1e-8),
    optimizer_that_maximizes=lambda: make(optim=partial(torch.optim.SGD, maximize=True), lr=.1),
    clipped_to_nothing=lambda: make(optim=torch.optim.SGD, lr=.05, hooks=[GradClip(1e-7)]))


# modes

def step_in(training, part=lambda model: model):
    "A step that switches the model, or a part of it, to a mode"
    def step(batch, learn):
        part(learn.model).train(training)
        pred = learn.model(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}
    return dict(loss_fn=None, train_step=step)

bug('wrong_mode', source='fartashf/vsepp/issues/4',
    step_in_evaluation_mode=lambda: make(lambda: nn.Sequential(nn.Dropout(.2), mlp()), **step_in(False)))
bug('wrong_mode', source='wolny/pytorch-3dunet/issues/53', validation_in_training_mode=lambda: make(
    lambda: nn.Sequential(mlp(64), nn.Dropout(.2), nn.Linear(64, 10)), **step_in(True)))
bug('wrong_mode', batchnorm_in_eval_in_step=lambda: make(
    lambda: nn.Sequential(nn.BatchNorm1d(64), mlp()), **step_in(False, lambda model: model[0])))


# data

bug('not_normalized', source='kratzert/finetune_alexnet_with_tensorflow/issues/79',
    pixels_to_255=lambda: make(x=digits()[0]*90 + 120))
bug('not_normalized', source='pkmital/pycadl/pull/5',
    divided_by_255_twice=lambda: make(x=(digits()[0].clip(-1) + 1)/255/255))
bug('not_normalized', one_column_in_millions=lambda: make(x=changed(digits()[0], column(5), digits()[0][:, 5]*1e6)))
bug('nan_inputs', source='vanvalenlab/deepcell-toolbox/issues/71', normalized_by_a_deviation_of_zero=lambda: make(
    x=changed(digits()[0], slice(None, None, 40), float('nan'))))
bug('nan_targets', gaps_in_the_targets=lambda: make(
    mlp(1), y=price(), loss_fn=lambda p, y: (p - y).square().nanmean(), train=DataLoader(TensorDataset(
        digits()[0], changed(price(), slice(None, None, 40), float('nan'))), 32, shuffle=True)))
bug('constant_inputs', dataset_ignores_its_index=lambda: make(x=digits()[0][:1].expand(400, -1).clone()))
bug('constant_targets', one_label_for_all=lambda: make(y=torch.full((400,), 3)))
bug('not_shuffled', source='Deci-AI/super-gradients/issues/416', sorted_and_not_shuffled=lambda: make(
    train=DataLoader(TensorDataset(*in_order(*rows(0, 320), rows(0, 320)[1])), 32)))

@bug('not_shuffled')
def sorted_regression():
    x, y = in_order(digits()[0][:320], price()[:320], price()[:320, 0])
    return make(mlp(1), train=DataLoader(TensorDataset(x, y), 32), valid=(digits()[0][320:], price()[320:]),
                loss_fn=F.mse_loss)

bug('valid_in_train', source='marin-community/marin/pull/2700',
    validation_overlaps_training=lambda: make(valid=rows(240, 360)))
bug('valid_in_train', validation_is_training=lambda: make(valid=rows(0, 320)))
bug('targets_out_of_range',
    labels_of_minus_one_and_one=lambda: make(mlp(1), y=binary()*2 - 1, loss_fn=F.binary_cross_entropy_with_logits),
    bce_of_class_ids=lambda: make(mlp(1), y=digits()[1].float()[:, None], loss_fn=F.binary_cross_entropy_with_logits))
bug('off_by_one', source='pyg-team/pytorch_geometric/issues/441',
    classes_from_one=lambda: make(mlp(11), y=digits()[1] + 1))
bug('step_fails', class_ids_up_to_10_of_10=lambda: make(y=digits()[1] + 1))
bug('unscaled_targets', prices_in_euros=lambda: make(mlp(1), y=price()*80_000 + 250_000, loss_fn=F.mse_loss))


# healthy set-ups: usual ones, and unusual ones that look like a bug

healthy(classifier=lambda: make(metrics=accuracy))
healthy(binary_classifier=lambda: make(mlp(1), y=binary(), loss_fn=F.binary_cross_entropy_with_logits))
healthy(regression=lambda: make(mlp(1), y=price(), loss_fn=nn.MSELoss()))
healthy(positive_regression=lambda: make(mlp(1, nn.Softplus()), y=price().exp().clip(max=8), loss_fn=F.mse_loss))
healthy(sigmoid_with_bce=lambda: make(mlp(1, nn.Sigmoid()), y=binary(), loss_fn=nn.BCELoss()))
healthy(log_softmax_with_nll=lambda: make(mlp(10, nn.LogSoftmax(1)), loss_fn=nn.NLLLoss()))
healthy(images_with_batchnorm=lambda: make(cnn, x=images(), metrics=accuracy, hooks=[OneCycle(.01)]))
healthy(pixels_from_0_to_1=lambda: make(cnn, x=(images().clip(-1) + 1)/3.2))

healthy(fine_tuning=lambda: make(frozen(0)))
healthy(frozen_by_a_hook=lambda: make(cnn, x=images(), hooks=[Freeze('0', '1'), FreezeBN()]))
healthy(
    momentum_and_weight_decay=lambda: make(optim=partial(torch.optim.SGD, momentum=.9, weight_decay=5e-4), lr=.03))

healthy(dropout_and_layer_norm=lambda: make(
    nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(.3), nn.Linear(64, 10)),
    hooks=[EMA(.99), GradClip(1.)]))
healthy(accumulation_and_bf16=lambda: make(hooks=[GradAccum(2), AMP()]))
healthy(zero_head=lambda: make(with_weights(nn.init.zeros_, at=[2])))

class Pairs(Dataset):
    "Augmented samples"
    def __init__(self, x, y): self.x, self.y = x, y
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i] + .1*torch.randn(64), self.y[i]

@healthy
def augmentation():
    train, valid = split(*digits())
    return make(train=DataLoader(Pairs(*train), 32, shuffle=True), valid=DataLoader(TensorDataset(*valid), 80))

class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(50, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, ids): return self.head(self.rnn(self.embed(ids))[1][-1])

@healthy
def tokens():
    x = torch.randint(1, 50, (400, 12), generator=torch.Generator().manual_seed(0))
    return make(Texts, x=x, y=(x[:, 0] > 25).long())

class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(torch.randint(1 << 30, ()).item())
        for _ in range(320):
            x = torch.randn(64, generator=g)
            yield x, (x[:10].sum() > 0).long()

@healthy
def stream():
    x = torch.randn(80, 64, generator=torch.Generator().manual_seed(5))
    return make(mlp(2), train=DataLoader(Stream(), 32), valid=(x, (x[:, :10].sum(1) > 0).long()))

def smooth_step(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1], label_smoothing=.1), 'pred': pred, 'targ': batch[1]}

def bare_step(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])}

healthy(own_step=lambda: make(loss_fn=None, train_step=smooth_step, metrics=accuracy))
healthy(step_that_returns_a_loss_only=lambda: make(loss_fn=None, train_step=bare_step))

class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {'logits': logits, **({} if labels is None else {'loss': F.cross_entropy(logits, labels)})}

@healthy
def named_batches():
    x, y = digits()
    rows = [{'x': a, 'labels': b} for a, b in zip(x, y)]
    return make(WithLoss, loss_fn=None, train=DataLoader(rows[:320], 32, shuffle=True),
                valid=DataLoader(rows[320:], 80))

@healthy
def trained_already():
    learn = make(metrics=accuracy)
    learn.fit(8)
    return learn
