"""Set-ups for `learn.doctor()`: some with one bug each, others healthy

A bug is a function that makes a `Learner`, with the names of the findings that name it, and where it was reported. Bugs
without a link are of the kinds in the taxonomy of Humbatova et al. (2020, arXiv:1910.11015).
"""
from functools import cache, partial

import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from trainer_nb.all import (
    AMP, EMA, Freeze, FreezeBN, GradAccum, GradClip, Hook, Learner, OneCycle, WarmupCosine, accuracy, set_seed
)

BUGS = {}           # name → (function, names of findings, source)
HEALTHY = {}        # name → function

def bug(*names, source='', **made):
    for name, f in made.items(): BUGS[name] = f, set(names), source and f'https://github.com/{source}'

def rand(): return torch.Generator().manual_seed(0)

@cache
def digits():
    "(x, y): 400 digits of 64 numbers, standardized, in random order; class ids"
    from sklearn.datasets import load_digits
    d = load_digits()
    at = torch.randperm(len(d.target), generator=rand())[:400]
    x = torch.tensor(d.data, dtype=torch.float32)
    return ((x - x.mean())/x.std())[at], torch.tensor(d.target)[at]

def changed(x, at, value):
    "A copy with other values somewhere"
    x = x.clone()
    x[at] = value
    return x

def rows(start, end, of=digits): return tuple(o[start:end] for o in of())

def in_order(x, y, by):
    "Batches of samples sorted by a key"
    at = by.sort(stable=True).indices
    return DataLoader(TensorDataset(x[at], y[at]), 32)

def mlp(n_out=10, *last, n_in=64, act=nn.ReLU):
    return nn.Sequential(nn.Linear(n_in, 64), act(), nn.Linear(64, n_out), *last)

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

def step(loss):
    "A step of one's own, of `loss(model, batch)`"
    return dict(loss_fn=None, train_step=lambda batch, learn: {'loss': loss(learn.model, batch)})

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
    def __init__(self, f=None, n_out=10, **parts):
        super().__init__()
        self.f = f
        for k, o in (parts or {'body': nn.Linear(64, 64), 'head': nn.Linear(64, n_out)}).items(): setattr(self, k, o)

    def forward(self, x, **kwargs): return self.f(self, x, **kwargs)

def two(between=F.relu, after=lambda x: x): return Net(lambda o, x: after(o.head(between(o.body(x)))))

# what the output layer and the loss make of one another

bce, mse = F.binary_cross_entropy_with_logits, F.mse_loss
bug('first_batch_warns', source='illiterate/BertClassifier/issues/2',
    softmax_before_cross_entropy=lambda: make(mlp(10, nn.Softmax(1))))
bug('first_batch_warns', softmax_function_in_forward=lambda: make(
    two(after=lambda x: x.softmax(-1)), loss_fn=nn.CrossEntropyLoss(label_smoothing=.1)))
bug('first_batch_warns', source='avBuffer/UNet3plus_pth/issues/23', sigmoid_before_bce_with_logits=lambda: make(
    mlp(1, nn.Sigmoid()), y=binary(), loss_fn=bce))
bug('first_batch_warns', source='AnubhavGupta3377/Text-Classification-Models-Pytorch/issues/9',
    nll_of_a_softmax=lambda: make(mlp(10, nn.Softmax(1)), loss_fn=F.nll_loss))
bug('first_batch_warns', nll_of_logits=lambda: make(loss_fn=F.nll_loss))
bug('step_fails', cross_entropy_of_one_logit=lambda: make(mlp(1), y=binary()))
bug('no_gradient', one_logit_and_an_own_loss=lambda: make(
    mlp(1), y=binary(), loss_fn=lambda p, y: F.cross_entropy(p, y)))
bug('loss_not_finite',
    log_of_zero=lambda: make(mlp(10, nn.Softmax(1)), loss_fn=lambda p, y: -(p*F.one_hot(y, 10)).log().mean()),
    root_of_zero=lambda: make(mlp(1), y=price(), loss_fn=lambda p, y: mse(p, y) + 1e-3*(p - p).sqrt().mean()))

def weights_and(loss):
    "A loss of the weights, and something without a gradient"
    model = mlp()
    return make(model, loss_fn=lambda pred, y: loss(pred, y) + .01*sum(p.square().sum() for p in model.parameters()))

bug('detached_loss',
    loss_of_the_weights_only=lambda: weights_and(lambda pred, y: F.cross_entropy(pred.detach(), y)),
    loss_of_an_argmax=lambda: weights_and(lambda pred, y: (pred.argmax(1) != y).float().mean()))
bug('step_fails', loss_without_a_gradient=lambda: make(loss_fn=lambda pred, y: F.cross_entropy(pred.detach(), y)))

# parameters, gradients and optimizers

def frozen(model, i=0):
    model[i].requires_grad_(False)
    return model

def with_weights(init, bias=None, at=(0, 2)):
    "A network whose weights, and biases, are set by hand"
    model = mlp()
    for i in at:
        init(model[i].weight)
        if bias is not None: bias(model[i].bias)
    return model

def no_grad_body(o, x):
    with torch.no_grad(): h = o.body(x).relu()
    return o.head(h)

bug('first_batch_warns', source='pytorch/pytorch/issues/715', layers_in_a_list=lambda: make(
    lambda: Net(lambda o, x: o.head(o.layers[0](x).relu()), layers=[nn.Linear(64, 64)], head=nn.Linear(64, 10))))
bug('first_batch_warns', source='pytorch/pytorch/issues/632', parameters_in_a_dict=lambda: make(
    lambda: Net(lambda o, x: o.net(x*o.scales['a']), scales={'a': nn.Parameter(torch.ones(64))}, net=mlp())))

def optimizer_made_before_the_head():
    model = mlp()[:2]
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return make(model.append(nn.Linear(64, 10)), optim=opt, lr=None)

bug('first_batch_warns', source='LaurentMazare/ocaml-torch/issues/36',
    optimizer_made_before_the_head=optimizer_made_before_the_head)
bug('no_gradient', source='pytorch/pytorch/issues/40983',
    detached_features=lambda: make(lambda: two(lambda x: x.detach().relu())))
bug('no_gradient', source='wagonhelm/NaNmnist/issues/2',
    weights_of_zero=lambda: make(with_weights(nn.init.zeros_, bias=nn.init.zeros_)))
bug('no_gradient',
    layer_that_nobody_calls=lambda: make(Net(lambda o, x: o.head(x), head=mlp(), gate=nn.Linear(64, 64))),
    no_grad_body=lambda: make(Net(no_grad_body)),
    argmax_in_the_middle=lambda: make(two(lambda x: F.one_hot(x.argmax(1), 64).float())))
SGD, Adam = torch.optim.SGD, torch.optim.Adam
bug('cannot_overfit',
    outputs_of_almost_nothing=lambda: make(lambda: two(after=lambda x: x*1e-4)),
    lr_of_sgd_far_too_low=lambda: make(optim=SGD, lr=1e-8),
    optimizer_that_maximizes=lambda: make(optim=partial(SGD, maximize=True), lr=.1),
    clipped_to_nothing=lambda: make(optim=SGD, lr=.05, hooks=[GradClip(1e-7)]))

# modes

def step_in(training, part=lambda model: model):
    "A step that switches the model, or a part of it, to a mode"
    def f(batch, learn):
        part(learn.model).train(training)
        pred = learn.model(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'targ': batch[1]}
    return dict(loss_fn=None, train_step=f)

def dropping(): return nn.Sequential(nn.Dropout(.2), mlp())

class InEval(Hook):
    "Keep a part of the model in evaluation mode"
    def __init__(self, part=lambda model: model): self.part = part
    def before_epoch(self, learn): self.part(learn.model).eval()

bug('wrong_mode', source='fartashf/vsepp/issues/4', step_in_evaluation_mode=lambda: make(dropping, **step_in(False)))
bug('wrong_mode', source='wolny/pytorch-3dunet/issues/53',
    validation_in_training_mode=lambda: make(dropping, **step_in(True)))
bug('wrong_mode', model_in_evaluation_mode_by_a_hook=lambda: make(dropping, hooks=[InEval()]),
    evaluation_mode_in_forward=lambda: make(Net(lambda o, x: o.eval().net(x), net=dropping())),
    batchnorm_in_eval_in_step=lambda: make(
        lambda: nn.Sequential(nn.BatchNorm1d(64), mlp()), **step_in(False, lambda model: model[0])))

# data

def randn(*shape): return torch.randn(*shape, generator=rand())

def tokens():
    x = torch.randint(1, 50, (400, 12), generator=rand())
    return x, (x[:, 0] > 25).long()

def texts():
    return Net(lambda o, ids: o.head(o.rnn(o.embed(ids))[1][-1]), embed=nn.Embedding(50, 16),
               rnn=nn.GRU(16, 32, batch_first=True), head=nn.Linear(32, 2))

bug('not_normalized', source='kratzert/finetune_alexnet_with_tensorflow/issues/79',
    pixels_to_255=lambda: make(x=digits()[0]*90 + 120))
bug('not_normalized', source='pkmital/pycadl/pull/5',
    divided_by_255_twice=lambda: make(x=(digits()[0].clip(-1) + 1)/255/255))
bug('not_normalized', one_column_in_millions=lambda: make(
    x=changed(digits()[0], (slice(None), 5), digits()[0][:, 5]*1e6)))
bug('not_finite', source='vanvalenlab/deepcell-toolbox/issues/71', normalized_by_a_deviation_of_zero=lambda: make(
    x=changed(digits()[0], slice(None, None, 40), float('nan'))))
bug('not_finite',
    gaps_in_the_targets=lambda: make(
        mlp(1), y=price(), loss_fn=lambda p, y: (p - y).square().nanmean(), train=DataLoader(TensorDataset(
            digits()[0], changed(price(), slice(None, None, 40), float('nan'))), 32, shuffle=True)),
    one_sample_far_behind=lambda: make(
        mlp(2), train=(changed(randn(8000, 64), 7700, float('nan')), torch.arange(8000) % 2), valid=rows(0, 9)))
bug('constant', dataset_ignores_its_index=lambda: make(x=digits()[0][:1].expand(400, -1).clone()))
bug('constant', one_label_for_all=lambda: make(y=torch.full((400,), 3)))
bug('not_shuffled', source='Deci-AI/super-gradients/issues/416',
    sorted_and_not_shuffled=lambda: make(train=in_order(*digits(), digits()[1]), valid=None))
bug('not_shuffled', sorted_regression=lambda: make(
    mlp(1), loss_fn=mse, train=in_order(digits()[0][:320], price()[:320], price()[:320, 0]), y=price()))
bug('valid_in_train', source='marin-community/marin/pull/2700',
    validation_overlaps_training=lambda: make(valid=rows(240, 360)))
bug('valid_in_train', validation_is_training=lambda: make(valid=rows(0, 320)),
    both_are_one_batch=lambda: make(train=[rows(0, 320)], valid=[rows(0, 320)]),
    one_of_two_sets=lambda: make(valid={'a': rows(320, 400), 'b': rows(100, 180)}),
    tokens_overlap=lambda: make(texts, *tokens(), valid=rows(200, 360, tokens)))
bug('targets_out_of_range', labels_of_minus_one_and_one=lambda: make(mlp(1), y=binary()*2 - 1, loss_fn=bce),
    bce_of_class_ids=lambda: make(mlp(1), y=digits()[1].float()[:, None], loss_fn=bce))
bug('off_by_one', source='pyg-team/pytorch_geometric/issues/441',
    classes_from_one=lambda: make(mlp(11), y=digits()[1] + 1))
bug('step_fails', class_ids_up_to_10_of_10=lambda: make(y=digits()[1] + 1),
    class_ids_from_minus_one=lambda: make(y=digits()[1] - 1))
bug('unscaled_targets', prices_in_euros=lambda: make(mlp(1), y=price()*80_000 + 250_000, loss_fn=mse),
    prices_and_an_own_loss=lambda: make(mlp(1), y=price()*80_000, loss_fn=lambda p, y: (p - y).abs().mean()))

# healthy set-ups: usual ones, and unusual ones that look like a bug

class Pairs(Dataset):
    "Augmented samples"
    def __init__(self, x, y): self.x, self.y = x, y
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return self.x[i] + .1*torch.randn(64), self.y[i]

class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(torch.randint(1 << 30, ()).item())
        for _ in range(320):
            x = torch.randn(64, generator=g)
            yield x, (x[:10].sum() > 0).long()

def smooth_step(batch, learn):
    pred = learn.model(batch[0])
    return {'loss': F.cross_entropy(pred, batch[1], label_smoothing=.1), 'pred': pred, 'targ': batch[1]}

def with_loss(o, x, labels=None):
    logits = o.net(x)
    return {'logits': logits, **({} if labels is None else {'loss': F.cross_entropy(logits, labels)})}

def named(start, end): return [{'x': a, 'labels': b} for a, b in zip(*rows(start, end))]

def trained_already():
    learn = make(metrics=accuracy)
    learn.fit(8)
    return learn

def gan_step(batch, learn):
    model, real = learn.model, batch[0]
    fake, one = model[0](torch.randn(len(real), 8)), torch.ones(len(real), 1)
    yield 'd', bce(model[1](real), one) + bce(model[1](fake.detach()), 0*one)
    yield 'g', bce(model[1](fake), one)

def vae_loss(model, batch):
    mean, log_var = model[0](batch[0]).chunk(2, 1)
    pred = model[1](mean + torch.randn_like(mean)*(log_var/2).exp())
    return mse(pred, batch[0]) - .001*(1 + log_var - mean.square() - log_var.exp()).mean()

def teacher_loss(model, batch):
    mode = model.training
    with torch.no_grad(): targ = model.eval()(batch[0]).softmax(1)
    return F.cross_entropy(model.train(mode)(batch[0]), (targ + F.one_hot(batch[1], 10))/2)

def wave():
    y = (torch.arange(420)*.1).sin() + .1*randn(420)
    return y.unfold(0, 20, 1)[:400, :, None], y[20:, None]

def language_model():
    "Attention and tied weights"
    head = nn.Linear(32, 50, bias=False)
    model = Net(lambda o, x: o.head(o.block(o.embed(x) + o.pos)).transpose(1, 2), head=head, embed=nn.Embedding(50, 32),
                pos=nn.Parameter(torch.zeros(12, 32)), block=nn.TransformerEncoderLayer(32, 2, 64, batch_first=True))
    model.embed.weight = head.weight
    return model

def adapted():
    "A frozen layer with an adapter of low rank, which begins with zeros"
    return Net(lambda o, x: o.head((o.body(x) + x @ o.a @ o.b).relu()), body=nn.Linear(64, 256).requires_grad_(False),
               a=nn.Parameter(torch.randn(64, 4)/8), b=nn.Parameter(torch.zeros(4, 256)), head=nn.Linear(256, 10))

def categories():
    x = torch.randint(3, (400, 5), generator=rand()).float()
    return x, (x[:, 0] > 1).long()

HEALTHY |= dict(
    classifier=lambda: make(metrics=accuracy), trained_already=trained_already,
    binary_classifier=lambda: make(mlp(1), y=binary(), loss_fn=bce),
    sigmoid_with_bce=lambda: make(mlp(1, nn.Sigmoid()), y=binary(), loss_fn=nn.BCELoss()),
    log_softmax_with_nll=lambda: make(mlp(10, nn.LogSoftmax(1)), loss_fn=nn.NLLLoss()),
    multi_label=lambda: make(mlp(64), y=(digits()[0] > 0).float(), loss_fn=nn.BCEWithLogitsLoss(
        pos_weight=torch.full((64,), 2.))),
    class_weights=lambda: make(loss_fn=nn.CrossEntropyLoss(weight=torch.arange(1., 11.), label_smoothing=.1)),
    rare_class=lambda: make(mlp(2), y=(digits()[0][:, 20] > 1.4).long()),
    soft_labels=lambda: make(y=F.one_hot(digits()[1], 10)*.9 + .01),
    ignored_labels=lambda: make(y=torch.where(digits()[0][:, 20] > 0, digits()[1], -100)),
    regression=lambda: make(mlp(1), y=price(), loss_fn=nn.MSELoss()),
    positive_regression=lambda: make(mlp(1, nn.Softplus()), y=price().exp().clip(max=8), loss_fn=mse),
    linear_regression=lambda: make(nn.Linear(64, 1), y=price(), loss_fn=mse),
    autoencoder=lambda: make(mlp(64), y=digits()[0], loss_fn=mse),
    vae=lambda: make(lambda: nn.Sequential(mlp(16), mlp(64, n_in=8)), **step(vae_loss)),
    gan=lambda: make(lambda: nn.Sequential(mlp(64, n_in=8), mlp(1)), loss_fn=None, train_step=gan_step,
                     optim=lambda o: {'g': Adam(o[0].parameters(), 2e-4), 'd': Adam(o[1].parameters(), 2e-4)}),
    images_with_batchnorm=lambda: make(cnn, x=images(), metrics=accuracy, hooks=[OneCycle(.01)]),
    pixels_from_0_to_1=lambda: make(cnn, x=(images().clip(-1) + 1)/3.2),
    pixels_scaled_in_forward=lambda: make(Net(lambda o, x: o.net((x - 120)/90), net=mlp()), x=digits()[0]*90 + 120),
    prices_scaled_in_forward=lambda: make(Net(lambda o, x: o.net(x)*8e4, net=mlp(1)), y=price()*8e4, loss_fn=F.l1_loss),
    segmentation=lambda: make(nn.Conv2d(1, 2, 3, padding=1), x=images(), y=(images()[:, 0] > 0).long()),
    tokens=lambda: make(texts, *tokens()),
    language_model=lambda: make(language_model, tokens()[0].sort().values, tokens()[0].sort().values.roll(-1, 1)),
    forecast=lambda: make(Net(lambda o, x: o.head(o.rnn(x)[0][:, -1]), rnn=nn.LSTM(1, 32, batch_first=True),
                              head=nn.Linear(32, 1)), *wave(), loss_fn=mse),
    categories_of_a_table=lambda: make(mlp(2, n_in=5), *categories()),
    fine_tuning=lambda: make(frozen(mlp())), zero_head=lambda: make(with_weights(nn.init.zeros_, at=[2])),
    frozen_by_a_hook=lambda: make(cnn, x=images(), hooks=[Freeze('0', '1'), FreezeBN()]),
    frozen_body=lambda: make(frozen(nn.Sequential(nn.Sequential(nn.Linear(64, 64), nn.Dropout()), mlp())),
                             hooks=[InEval(lambda model: model[0])]),
    head_only=lambda: make(optim=lambda o: Adam(o[2].parameters(), 3e-3)), adapter=lambda: make(adapted, lr=1e-4),
    momentum_and_weight_decay=lambda: make(optim=partial(SGD, momentum=.9, weight_decay=5e-4), lr=.03),
    small_rate=lambda: make(lr=2e-5), large_rate=lambda: make(optim=SGD, lr=.5), lbfgs=lambda: make(
        optim=torch.optim.LBFGS, lr=.1), warmup=lambda: make(hooks=[WarmupCosine(1e-3, warmup=.3)]),
    dropout_and_layer_norm=lambda: make(
        nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(.3), nn.Linear(64, 10)),
        hooks=[EMA(.99), GradClip(1.)]),
    accumulation_and_bf16=lambda: make(hooks=[GradAccum(2), AMP()]),
    augmentation=lambda: make(train=DataLoader(Pairs(*rows(0, 320)), 32, shuffle=True),
                              valid=DataLoader(TensorDataset(*rows(320, 400)), 80)),
    stream=lambda: make(mlp(2), train=DataLoader(Stream(), 32), valid=(randn(80, 64), tokens()[1][:80])),
    own_step=lambda: make(loss_fn=None, train_step=smooth_step, metrics=accuracy),
    step_that_returns_a_loss_only=lambda: make(**step(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))),
    named_batches=lambda: make(
        Net(with_loss, net=mlp()), loss_fn=None, train=DataLoader(named(0, 320), 32, shuffle=True),
        valid=DataLoader(named(320, 400), 80)),
    teacher=lambda: make(dropping, **step(teacher_loss)),
    one_batch=lambda: make(train=[rows(0, 320)], valid=[rows(320, 400)]),
    two_sets=lambda: make(valid={'a': rows(320, 360), 'b': rows(360, 400)}),
)
