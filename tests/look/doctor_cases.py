"""Set-ups for `learn.doctor()`: forty with one bug each, 21 healthy; and bugs that came after the checks

Fifteen of the latter try what the checks do not know; `EACH` has one for each check that the others do not need.

A bug is a function that makes a `Learner`, with the names of the findings that name it, and where it was reported. Bugs
without a link are of the kinds in the taxonomy of Humbatova et al. (2020, arXiv:1910.11015).
"""
import time
from functools import cache, partial

import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from trainer_nb.all import (AMP, EMA, Freeze, FreezeBN, GradAccum, GradClip, Learner, Metric, OneCycle, accuracy,
                            set_seed)

BUGS, LATER, EACH = {}, {}, {}          # name → (function, names of findings, source)
HEALTHY = {}                            # name → function
MISSED = {'labels_of_other_samples', 'one_hot_of_target_among_inputs'}

def bug(*names, source='', to=BUGS, **made):
    "Keep functions by name, as keyword arguments or as a decorator"
    def keep(f, name=''):
        to[name or f.__name__] = f, set(names), source and f'https://github.com/{source}'
        return f
    for name, f in made.items(): keep(f, name)
    return keep

later, each = partial(bug, to=LATER), partial(bug, to=EACH)

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

images = lambda: digits()[0].view(-1, 1, 8, 8)

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

@bug('double_sigmoid', source='avBuffer/UNet3plus_pth/issues/23')
def sigmoid_before_bce_with_logits():
    return make(mlp(1, nn.Sigmoid()), y=binary(), loss_fn=F.binary_cross_entropy_with_logits)

bug('not_log_probabilities', source='AnubhavGupta3377/Text-Classification-Models-Pytorch/issues/9',
    nll_of_a_softmax=lambda: make(mlp(10, nn.Softmax(1)), loss_fn=F.nll_loss))
bug('samples_interact', source='perone/euclidesdb/issues/2',
    softmax_over_the_batch=lambda: make(Net(after=lambda x: F.log_softmax(x, 0)), loss_fn=F.nll_loss))
bug('clipped_output', source='huyng/tensorflow-vgg/issues/13', relu_on_logits=lambda: make(mlp(10, nn.ReLU())))
bug('clipped_output', source='ProteomicsML/ProteomicsML/pull/203',
    relu_on_a_regression=lambda: make(mlp(1, nn.ReLU()), y=price(), loss_fn=F.mse_loss))
bug('negative_loss', 'metric_disagrees', source='kmkurn/pytorch-crf/issues/27',
    loss_without_its_minus=lambda: make(loss_fn=lambda p, y: F.log_softmax(p, 1).gather(1, y[:, None]).mean()))

@bug('metric_disagrees')
def accuracy_over_the_wrong_dimension():
    return make(metrics=Metric(lambda p, y: (p.argmax(0)[:len(y)] == y[:p.size(1)]).float().mean(), name='accuracy'))


# parameters, gradients and optimizers

class InAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = [nn.Linear(64, 64), nn.ReLU()], nn.Linear(64, 10)

    def forward(self, x):
        for f in self.layers: x = f(x)
        return self.head(x)

bug('unregistered', source='pytorch/pytorch/issues/715', layers_in_a_list=lambda: make(InAList))

class InADict(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales, self.head = {'a': nn.Parameter(torch.ones(64))}, nn.Linear(64, 10)

    def forward(self, x): return self.head(x*self.scales['a'])

bug('unregistered', source='pytorch/pytorch/issues/632', parameters_in_a_dict=lambda: make(InADict))

@bug('not_in_optimizer', source='LaurentMazare/ocaml-torch/issues/36')
def optimizer_made_before_the_head():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    model.append(nn.Linear(64, 10))
    return make(model, optim=opt, lr=None)

bug('no_gradient', source='pytorch/pytorch/issues/40983',
    detached_features=lambda: make(Net(between=lambda x: x.detach().relu())))

class Unused(Net):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 64)

bug('no_gradient', layer_that_nobody_calls=lambda: make(Unused))

@bug('no_gradient', 'symmetric', source='wagonhelm/NaNmnist/issues/2')
def weights_of_zero():
    model = mlp()
    for p in model.parameters(): nn.init.zeros_(p)
    return make(model)

@bug('vanishing')
def deep_and_sigmoid():
    between = (o for _ in range(10) for o in (nn.Sigmoid(), nn.Linear(32, 32)))
    return make(nn.Sequential(nn.Linear(64, 32), *between, nn.Linear(32, 10)))

@bug('frozen_head')
def frozen_head():
    model = mlp()
    model[2].requires_grad_(False)
    return make(model)

bug('lr', lr_of_adam_far_too_high=lambda: make(lr=1.))
bug('lr', lr_of_sgd_far_too_low=lambda: make(optim=torch.optim.SGD, lr=1e-8))
bug('no_progress', optimizer_that_maximizes=lambda: make(optim=partial(torch.optim.SGD, maximize=True), lr=.1))
bug('weight_decay', weight_decay_far_too_strong=lambda: make(optim=partial(torch.optim.Adam, weight_decay=5.)))
bug('no_progress', clipped_to_nothing=lambda: make(optim=torch.optim.SGD, lr=.05, hooks=[GradClip(1e-7)]))

@bug('initial_loss')
def weights_far_too_large():
    model = mlp()
    for m in (model[0], model[2]): nn.init.normal_(m.weight)
    return make(model)


# modes and randomness

def switching(training):
    "A step that switches the whole model to a mode"
    def step(batch, learn):
        learn.model.train(training)
        pred = learn.model(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}
    return step

@bug('wrong_mode', source='fartashf/vsepp/issues/4')
def step_in_evaluation_mode():
    return make(lambda: nn.Sequential(nn.Dropout(.2), mlp()), loss_fn=None, train_step=switching(False))

@bug('wrong_mode', source='wolny/pytorch-3dunet/issues/53')
def validation_in_training_mode():
    return make(lambda: nn.Sequential(mlp(64), nn.Dropout(.2), nn.Linear(64, 10)), loss_fn=None,
                train_step=switching(True))

bug('random_in_eval', source='colehurwitz/IBL_MtM_model/pull/13',
    dropout_as_a_function=lambda: make(Net(between=lambda x: F.dropout(x.relu(), .3))))
bug('samples_interact', source='zhouhaoyi/Informer2020/issues/59',
    view_for_a_transpose=lambda: make(Net(between=lambda x: x.relu().view(64, -1).contiguous().t())))

@bug('batch_of_one', source='fastai/fastai/issues/1352')
def last_batch_of_one():
    x, y = digits()
    return make(nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 10)), train=(x[:321], y[:321]))


# data

bug('not_normalized', source='kratzert/finetune_alexnet_with_tensorflow/issues/79',
    pixels_to_255=lambda: make(x=digits()[0]*90 + 120))
bug('not_normalized', source='pkmital/pycadl/pull/5',
    divided_by_255_twice=lambda: make(x=(digits()[0].clip(-1) + 1)/255/255))

@bug('nan_inputs', source='vanvalenlab/deepcell-toolbox/issues/71')
def normalized_by_a_deviation_of_zero():
    x = digits()[0].clone()
    x[::40] = float('nan')
    return make(x=x)

@bug('not_shuffled', source='Deci-AI/super-gradients/issues/416')
def sorted_and_not_shuffled():
    x, y = digits()
    at = y[:320].sort(stable=True).indices
    return make(train=DataLoader(TensorDataset(x[at], y[at]), 32))

@bug('valid_in_train', source='marin-community/marin/pull/2700')
def validation_overlaps_training():
    x, y = digits()
    return make(valid=(x[240:360], y[240:360]))

@bug('other_classes')
def split_without_shuffling():
    x, y = digits()
    at = y.sort(stable=True).indices
    return make(train=(x[at][:320], y[at][:320]), valid=(x[at][320:], y[at][320:]))

@bug('train_valid_differ')
def validation_not_normalized():
    x, y = digits()
    return make(valid=(x[320:]*6 + 5, y[320:]))

@bug('leak')
def target_among_the_inputs():
    x, y = digits()
    x = x.clone()
    x[:, 0] = y
    return make(x=x)

bug('targets_out_of_range',
    labels_of_minus_one_and_one=lambda: make(mlp(1), y=binary()*2 - 1, loss_fn=F.binary_cross_entropy_with_logits))
bug('off_by_one', source='pyg-team/pytorch_geometric/issues/441',
    classes_from_one=lambda: make(mlp(11), y=digits()[1] + 1))
bug('unscaled_targets', prices_in_euros=lambda: make(mlp(1), y=price()*80_000 + 250_000, loss_fn=F.mse_loss))

class Slow(TensorDataset):
    def __getitem__(self, i):
        time.sleep(.004)
        return super().__getitem__(i)

bug('slow_loader',
    loader_slower_than_the_model=lambda: make(train=DataLoader(Slow(*split(*digits())[0]), 32, shuffle=True)))

@bug('mismatched')
def labels_of_other_samples():
    x, y = digits()
    return make(y=y[torch.randperm(400, generator=torch.Generator().manual_seed(3))])


# healthy set-ups: usual ones, and unusual ones that look like a bug

healthy(classifier=lambda: make(metrics=accuracy))
healthy(binary_classifier=lambda: make(mlp(1), y=binary(), loss_fn=F.binary_cross_entropy_with_logits))
healthy(regression=lambda: make(mlp(1), y=price(), loss_fn=nn.MSELoss()))
healthy(positive_regression=lambda: make(mlp(1, nn.Softplus()), y=price().exp().clip(max=8), loss_fn=F.mse_loss))
healthy(sigmoid_with_bce=lambda: make(mlp(1, nn.Sigmoid()), y=binary(), loss_fn=nn.BCELoss()))
healthy(log_softmax_with_nll=lambda: make(mlp(10, nn.LogSoftmax(1)), loss_fn=nn.NLLLoss()))
healthy(images_with_batchnorm=lambda: make(cnn, x=images(), metrics=accuracy, hooks=[OneCycle(.01)]))
healthy(pixels_from_0_to_1=lambda: make(cnn, x=(images().clip(-1) + 1)/3.2))

@healthy
def fine_tuning():
    model = mlp()
    model[0].requires_grad_(False)
    return make(model)

healthy(frozen_by_a_hook=lambda: make(cnn, x=images(), hooks=[Freeze('0', '1'), FreezeBN()]))
healthy(
    momentum_and_weight_decay=lambda: make(optim=partial(torch.optim.SGD, momentum=.9, weight_decay=5e-4), lr=.03))

@healthy
def dropout_and_layer_norm():
    return make(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(.3), nn.Linear(64, 10)),
                hooks=[EMA(.99), GradClip(1.)])

healthy(accumulation_and_bf16=lambda: make(hooks=[GradAccum(2), AMP()]))

@healthy
def zero_head():
    model = mlp()
    nn.init.zeros_(model[2].weight)
    return make(model)

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

@healthy
def own_step():
    def step(batch, learn):
        x, y = batch
        pred = learn.model(x)
        return {'loss': F.cross_entropy(pred, y, label_smoothing=.1), 'pred': pred, 'targ': y}
    return make(loss_fn=None, train_step=step, metrics=accuracy)

@healthy
def step_that_returns_a_loss_only():
    def step(batch, learn): return {'loss': F.cross_entropy(learn.model(batch[0]), batch[1])}
    return make(loss_fn=None, train_step=step)

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


# bugs that were written when the checks stood

@later('double_softmax')
def softmax_function_in_forward():
    return make(Net(after=lambda x: x.softmax(-1)), loss_fn=nn.CrossEntropyLoss(label_smoothing=.1))

later('random_in_eval', noise_in_forward=lambda: make(Net(between=lambda x: (x + torch.randn_like(x)).relu())))
later('samples_interact',
    norm_over_the_batch=lambda: make(Net(between=lambda x: ((x - x.mean(0))/(x.std(0)+1e-5)).relu())))
later('no_gradient', argmax_in_the_middle=lambda: make(Net(between=lambda x: F.one_hot(x.argmax(1), 64).float())))

@later('no_gradient')
def no_grad_body():
    class M(Net):
        def forward(self, x):
            with torch.no_grad(): h = self.body(x).relu()
            return self.head(h)
    return make(M)

@later('leak')
def one_hot_of_target_among_inputs():
    x, y = digits()
    return make(x=torch.cat([x, F.one_hot(y, 10).float()],1), model=mlp(n_in=74))

@later('not_normalized')
def one_column_in_millions():
    x, y = digits()
    x = x.clone()
    x[:, 5] *= 1e6
    return make(x=x)

@later('train_valid_differ')
def validation_times_255():
    x, y = digits()
    return make(valid=(x[320:]*255, y[320:]))

later('loss_not_finite',
    log_of_zero=lambda: make(mlp(10, nn.Softmax(1)), loss_fn=lambda p, y: -(p*F.one_hot(y, 10)).log().mean()))
later('lr', adam_lr_10=lambda: make(lr=10.))

@later('wrong_mode')
def batchnorm_in_eval_in_step():
    def step(b, learn):
        learn.model[0].eval()
        pred = learn.model(b[0])
        return {'loss': F.cross_entropy(pred, b[1]), 'pred': pred, 'targ': b[1]}
    return make(lambda: nn.Sequential(nn.BatchNorm1d(64), mlp()), loss_fn=None, train_step=step)

@later('not_shuffled')
def sorted_regression():
    (x, _), y = digits(), price()
    at = y[:320, 0].sort().indices
    return make(mlp(1), train=DataLoader(TensorDataset(x[at], y[at]), 32), valid=(x[320:], y[320:]), loss_fn=F.mse_loss)

@later('valid_in_train')
def validation_is_training():
    x, y = digits()
    return make(valid=(x[:320], y[:320]))

@later('constant_inputs')
def dataset_ignores_its_index():
    x, y = digits()
    return make(x=x[:1].expand(400, -1).clone())

later('targets_out_of_range',
    bce_of_class_ids=lambda: make(mlp(1), y=digits()[1].float()[:, None], loss_fn=F.binary_cross_entropy_with_logits))


# bugs for checks that no other one needs

@each('nan_targets')
def gaps_in_the_targets():
    y = price().clone()
    y[::40] = float('nan')
    return make(mlp(1), y=y, loss_fn=lambda p, y: (p - y).square().nanmean())

each('constant_targets', one_label_for_all=lambda: make(y=torch.full((400,), 3)))
each('negative_loss',
    likelihood_without_its_minus=lambda: make(loss_fn=lambda p, y: F.log_softmax(p, 1).gather(1, y[:, None]).mean()))

@each('symmetric')
def all_weights_equal():
    model = mlp()
    for m in (model[0], model[2]): nn.init.constant_(m.weight, .01)
    for m in (model[0], model[2]): nn.init.zeros_(m.bias)
    return make(model)

each('cannot_overfit', outputs_of_almost_nothing=lambda: make(Net(after=lambda x: x*1e-4)))

@each('detached_loss')
def loss_of_the_weights_only():
    model = mlp()
    def loss(pred, y): return F.cross_entropy(pred.detach(), y) + .01*sum(p.square().sum() for p in model.parameters())
    return make(model, loss_fn=loss)

@each('detached_loss')
def loss_of_an_argmax():
    model = mlp()
    def loss(pred, y):
        wrong = (pred.argmax(1) != y).float().mean()
        return wrong + .01*sum(p.square().sum() for p in model.parameters())
    return make(model, loss_fn=loss)

class Clock:
    "Noise that no seed governs"
    def __call__(self, pred, y): return F.cross_entropy(pred, y) + (time.perf_counter_ns() % 1000)*1e-4

each('not_deterministic', loss_of_the_hour=lambda: make(loss_fn=Clock()))

@each('leak')
def target_among_the_inputs_of_a_regression():
    x = digits()[0].clone()
    x[:, 7] = price()[:, 0]*.5
    return make(mlp(1), x=x, y=price(), loss_fn=F.mse_loss)

@each('loss_not_finite')
def root_of_zero():
    return make(mlp(1), y=price(), loss_fn=lambda p, y: (p - y).square().mean() + 1e-3*(p - p).sqrt().mean())

each('clipped_output', tanh_on_a_regression=lambda: make(mlp(1, nn.Tanh()), y=price()*3, loss_fn=F.mse_loss))
