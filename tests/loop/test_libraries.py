"""Programs of other libraries, each as its documentation has it and with a `Learner`: equal bit for bit

Each function makes a model, its loaders, the loop by hand, which yields (name, value), and the same with a `Learner`.
`make programs` installs the libraries; without one, its program is skipped. `partial(Adam)` is the plain form of an
optimizer: its class would select the fused one.
"""
import inspect, math, random
from functools import partial
from types import SimpleNamespace

import numpy, pytest, torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LinearLR, StepLR
from torch.utils.data import DataLoader

from common import weights
from programs import evaluated, loop, mean, said
from trainer_nb.all import Learner, LRScheduler, accuracy

pytestmark = pytest.mark.soak
TINY = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)

def rand(*shape, seed=1): return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))
def ids(n, *shape, seed=1): return torch.randint(n, shape, generator=torch.Generator().manual_seed(seed))

def split(data, bs=8, loader=DataLoader, **kwargs):
    n = len(data)*3//4
    return loader(data[:n], bs, shuffle=True, **kwargs), loader(data[n:], bs, **kwargs)

def transformers():
    "https://huggingface.co/learn/llm-course/chapter3/4"
    from datasets import Dataset
    from transformers import BertConfig, BertForSequenceClassification, get_scheduler
    def model(): return BertForSequenceClassification(BertConfig(**TINY, num_labels=2))
    def loaders():
        words = ids(50, 40, 10)
        columns = {'input_ids': words, 'attention_mask': torch.ones_like(words), 'labels': (words.sum(1) > 250).long()}
        data = Dataset.from_dict({k: v.tolist() for k, v in columns.items()}).with_format('torch')
        return DataLoader(data.select(range(30)), 8, shuffle=True), DataLoader(data.select(range(30, 40)), 8)

    def plain(model, train_dl, valid_dl):
        optimizer = AdamW(model.parameters(), lr=5e-3)
        def right(b): return (model(**b).logits.argmax(-1) == b['labels']).sum().item()
        def accuracy(): return {'valid_accuracy': mean(model, valid_dl, right)}
        return loop(model, train_dl, optimizer, lambda batch: model(**batch).loss,
                    get_scheduler('linear', optimizer, 0, 2*len(train_dl)), after=accuracy)

    def ours(model, train_dl, valid_dl):
        return Learner(model, train_dl, valid_dl, optim=partial(AdamW, lr=5e-3), metrics=accuracy,
                       hooks=LRScheduler(lambda opt, n: get_scheduler('linear', opt, 0, n))), 2
    return model, loaders, plain, ours

def torchvision():
    "https://github.com/pytorch/vision/blob/main/references/detection/engine.py"
    from torchvision.models.detection import FasterRCNN, rpn
    from torchvision.ops import MultiScaleRoIAlign
    def model():
        body = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        body.out_channels = 8
        anchors, pool = rpn.AnchorGenerator(((16, 32),), ((.5, 1., 2.),)), MultiScaleRoIAlign(['0'], 3, 2)
        return FasterRCNN(body, 3, 64, 64, rpn_anchor_generator=anchors, box_roi_pool=pool, rpn_post_nms_top_n_train=20,
                          rpn_post_nms_top_n_test=10, box_batch_size_per_image=16)
    def loaders():
        at = ids(24, 16, 2, 2).float()
        boxes = torch.cat([at, at + 16 + ids(20, 16, 2, 2, seed=2)], 2)
        targets = [{'boxes': b, 'labels': y} for b, y in zip(boxes, 1 + ids(2, 16, 2))]
        return split([*zip(rand(16, 3, 64, 64), targets)], 4, collate_fn=lambda batch: tuple(zip(*batch)))

    def plain(model, train_dl, valid_dl):
        params = [p for p in model.parameters() if p.requires_grad]
        optimizer = SGD(params, lr=5e-3, momentum=.9, weight_decay=5e-4)
        scheduler = StepLR(optimizer, step_size=1, gamma=.1)
        for epoch in range(2):
            model.train()
            lr_scheduler = None
            if epoch == 0: lr_scheduler = LinearLR(optimizer, start_factor=1./1000, total_iters=len(train_dl) - 1)
            for images, targets in train_dl:
                loss_dict = model(images, targets)
                loss = sum(loss for loss in loss_dict.values())
                if not math.isfinite(loss.item()): raise FloatingPointError(loss_dict)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if lr_scheduler is not None: lr_scheduler.step()
                yield 'train_loss', loss.item()
                yield 'train_loss_box_reg', loss_dict['loss_box_reg'].item()
            scheduler.step()
            evaluated(model, valid_dl, lambda batch: model(batch[0]))

    def ours(model, train_dl, valid_dl):
        def train_step(batch, learn):
            losses = learn.model(*batch)
            return {'loss': sum(losses.values()), **losses}
        def eval_step(batch, learn): return {'pred': learn.model(batch[0]), 'targ': batch[1]}
        return Learner(model, train_dl, valid_dl, train_step=train_step, eval_step=eval_step,
                       optim=partial(SGD, lr=5e-3, momentum=.9, weight_decay=5e-4),
                       hooks=[LRScheduler(lambda opt: LinearLR(opt, 1/1000, total_iters=len(train_dl) - 1)),
                              LRScheduler(lambda opt: StepLR(opt, 1, .1), step='epoch')]), 2
    return model, loaders, plain, ours

PROGRAMS = [o for o in [*globals().values()] if inspect.isfunction(o) and (o.__doc__ or '').startswith('https://')]

def started(make, loaders, loop):
    "(model, what the loop returns)"
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    model = make()
    return model, loop(model, *loaders())

@pytest.fixture(scope='module', params=PROGRAMS, ids=lambda o: o.__name__)
def program(request):
    name = request.param.__name__
    try: make, loaders, plain, ours = request.param()
    except (ImportError, RuntimeError) as e: pytest.skip(f'{name}: {e}')       # a torchvision of another torch
    by_hand, values = started(make, loaders, plain)
    told = said(values)
    _, (learn, n_epochs) = started(make, loaders, ours)
    learn.fit(n_epochs)
    return SimpleNamespace(name=name, by_hand=by_hand, said=told, learn=learn,
                           again=lambda: started(make, loaders, ours)[1][0])

def test_weights_and_values_are_those_of_the_loop(program):
    "Losses of batches, too, bit for bit; means over an epoch up to the order of a sum"
    assert all(map(torch.equal, weights(program.by_hand), weights(program.learn.model)))
    steps, epochs = program.learn.history.steps, program.learn.history.epochs
    for name, values in program.said.items():
        if len(values) > len(epochs['epoch']): assert [*steps[name]] == values, name
        else: assert epochs[name] == pytest.approx(values, rel=1e-6), name

def test_it_is_saved_shown_and_proved(program, tmp_path):
    learn, dl, other = program.learn, program.learn.valid_dl or [*program.learn.train_dl], program.again()
    learn.save(tmp_path/'state.pt')
    other.load(tmp_path/'state.pt')
    assert all(map(torch.equal, weights(other.model), weights(learn.model)))
    assert (found := program.again().check_resume()).is_exact and not found.lost, found
    if program.name == 'torchvision':
        with pytest.raises(ValueError, match='expected tensors'): learn.results(dl).report()
    else: assert len(learn.results(dl).report().names) > 0
    pred = learn.predict(dl)
    assert len(getattr(pred, 'logits', pred)) == len(learn.results(dl))
