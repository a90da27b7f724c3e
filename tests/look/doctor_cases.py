"""Set-ups for `learn.doctor()`: some with one bug each, others healthy

A bug is a function that makes a `Learner`, with the name of the finding that names it, and where it was reported. Bugs
without a link are of the kinds in the taxonomy of Humbatova et al. (2020, arXiv:1910.11015).
"""
from functools import cache, partial

import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainer_nb.all import (
    AMP, EMA, Freeze, FreezeBN, GradAccum, GradClip, Learner, OneCycle, WarmupCosine, accuracy, set_seed
)

BUGS = {}           # name → (function, name of the finding, source)

def bug(finding, source='', **made):
    for name, f in made.items(): BUGS[name] = f, finding, source and f'https://github.com/{source}'

def rand(): return torch.Generator().manual_seed(0)

@cache
def digits():
    "(x, y): 400 digits of 64 numbers, standardized, in random order; class ids"
    from sklearn.datasets import load_digits
    d = load_digits()
    at = torch.randperm(len(d.target), generator=rand())[:400]
    x = torch.tensor(d.data, dtype=torch.float32)
    return ((x - x.mean())/x.std())[at], torch.tensor(d.target)[at]

def rows(start, end, of=digits): return tuple(o[start:end] for o in of())

def mlp(n_out=10, *last, n_in=64): return nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, n_out), *last)

def make(model=None, x=None, y=None, loss_fn=F.cross_entropy, train=None, valid=None, optim=torch.optim.AdamW,
         lr=3e-3, **kwargs):
    "A healthy learner, but for what is given; `optim(model)` may make the optimizers of a model that is made here"
    data = [mine if o is None else o for o, mine in zip((x, y), digits())]
    train = tuple(o[:320] for o in data) if train is None else train
    valid = tuple(o[320:] for o in data) if valid is None else valid
    set_seed(1)
    model = mlp() if model is None else model() if not isinstance(model, nn.Module) else model
    if not isinstance(optim, (type, partial, torch.optim.Optimizer)): optim, lr = optim(model), None
    return Learner(model, train, valid, bs=32, loss_fn=loss_fn, optim=optim, lr=lr, display=False, **kwargs)

def binary(): return (digits()[1] % 2).float()[:, None]

def price():
    "A regression target that the inputs tell, of mean 0 and deviation 1"
    x, _ = digits()
    y = x[:, 10:20].sum(1, keepdim=True) + x[:, 30:31]*x[:, 40:41]
    return (y - y.mean())/y.std()

def images(): return digits()[0].view(-1, 1, 8, 8)

def cnn(): return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))

class Net(nn.Module):
    "A model of parts, or of two layers, and `f(model, x)`"
    def __init__(self, f=None, **parts):
        super().__init__()
        self.f = f
        for k, o in (parts or {'body': nn.Linear(64, 64), 'head': nn.Linear(64, 10)}).items(): setattr(self, k, o)

    def forward(self, x, **kwargs): return self.f(self, x, **kwargs)

def two(between=F.relu, after=lambda x: x): return Net(lambda o, x: after(o.head(between(o.body(x)))))

# what the output layer and the loss make of one another

bce, mse, SGD, Adam = F.binary_cross_entropy_with_logits, F.mse_loss, torch.optim.SGD, torch.optim.Adam
bug('first_batch_warns', 'illiterate/BertClassifier/issues/2',
    softmax_before_cross_entropy=lambda: make(mlp(10, nn.Softmax(1))))
bug('first_batch_warns', 'avBuffer/UNet3plus_pth/issues/23',
    sigmoid_before_bce_with_logits=lambda: make(mlp(1, nn.Sigmoid()), y=binary(), loss_fn=bce))
bug('step_fails', cross_entropy_of_one_logit=lambda: make(mlp(1), y=binary()))
bug('loss_not_finite', log_of_zero=lambda: make(
    mlp(10, nn.Softmax(1)), loss_fn=lambda p, y: -(p*F.one_hot(y, 10)).log().mean()))

def loss_of_the_weights_only():
    model = mlp()
    return make(model, loss_fn=lambda pred, y: F.cross_entropy(pred.detach(), y) + .01*sum(
        p.square().sum() for p in model.parameters()))

bug('detached_loss', loss_of_the_weights_only=loss_of_the_weights_only)

# parameters, gradients and optimizers

def with_weights(init, bias=None, at=(0, 2)):
    "A network whose weights, and biases, are set by hand"
    model = mlp()
    for i in at:
        init(model[i].weight)
        if bias is not None: bias(model[i].bias)
    return model

def optimizer_made_before_the_head():
    model = mlp()[:2]
    opt = Adam(model.parameters(), 3e-3)
    return make(model.append(nn.Linear(64, 10)), optim=opt, lr=None)

bug('first_batch_warns', 'pytorch/pytorch/issues/715', layers_in_a_list=lambda: make(
    lambda: Net(lambda o, x: o.head(o.layers[0](x).relu()), layers=[nn.Linear(64, 64)], head=nn.Linear(64, 10))))
bug('first_batch_warns', 'LaurentMazare/ocaml-torch/issues/36',
    optimizer_made_before_the_head=optimizer_made_before_the_head)
bug('no_gradient', 'pytorch/pytorch/issues/40983',
    detached_features=lambda: make(lambda: two(lambda x: x.detach().relu())))
bug('no_gradient', 'wagonhelm/NaNmnist/issues/2',
    weights_of_zero=lambda: make(with_weights(nn.init.zeros_, bias=nn.init.zeros_)))
bug('cannot_overfit', lr_of_sgd_far_too_low=lambda: make(optim=SGD, lr=1e-8),
    optimizer_that_maximizes=lambda: make(optim=partial(SGD, maximize=True), lr=.1))

# modes

def step_in(training):
    "A step that switches the model to a mode"
    def f(batch, learn):
        pred = learn.model.train(training)(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}
    return dict(loss_fn=None, train_step=f)

def dropping(): return nn.Sequential(nn.Dropout(.2), mlp())

bug('wrong_mode', 'fartashf/vsepp/issues/4', step_in_evaluation_mode=lambda: make(dropping, **step_in(False)))
bug('wrong_mode', 'wolny/pytorch-3dunet/issues/53',
    validation_in_training_mode=lambda: make(dropping, **step_in(True)))

# data

def randn(*shape): return torch.randn(*shape, generator=rand())

def tokens():
    x = torch.randint(1, 50, (400, 12), generator=rand())
    return x, (x[:, 0] > 25).long()

def texts():
    return Net(lambda o, ids: o.head(o.rnn(o.embed(ids))[1][-1]), embed=nn.Embedding(50, 16),
               rnn=nn.GRU(16, 32, batch_first=True), head=nn.Linear(32, 2))

def sorted_and_not_shuffled():
    at = digits()[1].sort(stable=True).indices
    return make(train=DataLoader(TensorDataset(*(o[at] for o in digits())), 32), valid=None)

bug('not_normalized', 'kratzert/finetune_alexnet_with_tensorflow/issues/79',
    pixels_to_255=lambda: make(x=digits()[0]*90 + 120))
bug('not_normalized', 'pkmital/pycadl/pull/5',
    divided_by_255_twice=lambda: make(x=(digits()[0].clip(-1) + 1)/255/255))
bug('not_finite', 'vanvalenlab/deepcell-toolbox/issues/71', normalized_by_a_deviation_of_zero=lambda: make(
    x=digits()[0].index_fill(0, torch.arange(0, 400, 40), float('nan'))))
bug('constant', dataset_ignores_its_index=lambda: make(x=digits()[0][:1].expand(400, -1).clone()),
    one_label_for_all=lambda: make(y=torch.full((400,), 3)))
bug('not_shuffled', 'Deci-AI/super-gradients/issues/416', sorted_and_not_shuffled=sorted_and_not_shuffled)
bug('valid_in_train', 'marin-community/marin/pull/2700',
    validation_overlaps_training=lambda: make(valid=rows(240, 360)))
bug('valid_in_train', tokens_overlap=lambda: make(texts, *tokens(), valid=rows(200, 360, tokens)))
bug('targets_out_of_range', labels_of_minus_one_and_one=lambda: make(mlp(1), y=binary()*2 - 1, loss_fn=bce))
bug('off_by_one', 'pyg-team/pytorch_geometric/issues/441', classes_from_one=lambda: make(mlp(11), y=digits()[1] + 1))
bug('unscaled_targets', prices_in_euros=lambda: make(mlp(1), y=price()*80_000 + 250_000, loss_fn=mse))

# healthy set-ups: usual ones, and unusual ones that look like a bug

class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(torch.randint(1 << 30, ()).item())
        for _ in range(320):
            x = torch.randn(64, generator=g)
            yield x, (x[:10].sum() > 0).long()

def wave():
    y = (torch.arange(420)*.1).sin() + .1*randn(420)
    return y.unfold(0, 20, 1)[:400, :, None], y[20:, None]

def adapted():
    "A frozen layer with an adapter of low rank, which begins with zeros"
    return Net(lambda o, x: o.head((o.body(x) + x @ o.a @ o.b).relu()), body=nn.Linear(64, 256).requires_grad_(False),
               a=nn.Parameter(torch.randn(64, 4)/8), b=nn.Parameter(torch.zeros(4, 256)), head=nn.Linear(256, 10))

def trained_already():
    learn = make(metrics=accuracy)
    learn.fit(8)
    return learn

HEALTHY = dict(      # name → function
    classifier=lambda: make(metrics=accuracy), trained_already=trained_already,
    fine_tuning=lambda: make(nn.Sequential(nn.Linear(64, 64).requires_grad_(False), nn.ReLU(), nn.Linear(64, 10))),
    sigmoid_with_bce=lambda: make(mlp(1, nn.Sigmoid()), y=binary(), loss_fn=nn.BCELoss()),
    log_softmax_with_nll=lambda: make(mlp(10, nn.LogSoftmax(1)), loss_fn=nn.NLLLoss()),
    multi_label=lambda: make(mlp(64), y=(digits()[0] > 0).float(), loss_fn=nn.BCEWithLogitsLoss(
        pos_weight=torch.full((64,), 2.))),
    class_weights=lambda: make(loss_fn=nn.CrossEntropyLoss(weight=torch.arange(1., 11.), label_smoothing=.1)),
    rare_class=lambda: make(mlp(2), y=(digits()[0][:, 20] > 1.4).long()),
    ignored_labels=lambda: make(y=torch.where(digits()[0][:, 20] > 0, digits()[1], -100)),
    regression=lambda: make(mlp(1), y=price(), loss_fn=nn.MSELoss()),
    linear_regression=lambda: make(nn.Linear(64, 1), y=price(), loss_fn=mse),
    autoencoder=lambda: make(mlp(64), y=digits()[0], loss_fn=mse),
    images_with_batchnorm=lambda: make(cnn, x=images(), metrics=accuracy, hooks=[OneCycle(.01)]),
    pixels_from_0_to_1=lambda: make(cnn, x=(images().clip(-1) + 1)/3.2),
    prices_scaled_in_forward=lambda: make(Net(lambda o, x: o.net(x)*8e4, net=mlp(1)), y=price()*8e4, loss_fn=F.l1_loss),
    segmentation=lambda: make(nn.Conv2d(1, 2, 3, padding=1), x=images(), y=(images()[:, 0] > 0).long()),
    tokens=lambda: make(texts, *tokens()),
    forecast=lambda: make(Net(lambda o, x: o.head(o.rnn(x)[0][:, -1]), rnn=nn.LSTM(1, 32, batch_first=True),
                              head=nn.Linear(32, 1)), *wave(), loss_fn=mse),
    frozen_by_a_hook=lambda: make(cnn, x=images(), hooks=[Freeze('0', '1'), FreezeBN()]),
    head_only=lambda: make(optim=lambda o: Adam(o[2].parameters(), 3e-3)), adapter=lambda: make(adapted, lr=1e-4),
    zero_head=lambda: make(with_weights(nn.init.zeros_, at=[2])), lbfgs=lambda: make(optim=torch.optim.LBFGS, lr=.1),
    small_rate=lambda: make(lr=2e-5),
    warmup=lambda: make(hooks=[WarmupCosine(1e-3, warmup=.3), EMA(.99), GradClip(1.)]),
    accumulation_and_bf16=lambda: make(hooks=[GradAccum(2), AMP()]),
    stream=lambda: make(mlp(2), train=DataLoader(Stream(), 32), valid=(randn(80, 64), tokens()[1][:80])),
    one_batch=lambda: make(train=[rows(0, 320)], valid=[rows(320, 400)]),
    two_sets=lambda: make(valid={'a': rows(320, 360), 'b': rows(360, 400)}),
)
