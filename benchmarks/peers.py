"""What other libraries cost beside ours: `python benchmarks/peers.py [seconds]`

Needs the environment of `make bench-peers`. A tiny MLP (16 → 32 → 2), batches of 32 that are ready in a list,
SGD, one thread, everything on the CPU. Two jobs: 400 steps in one epoch without validation ('step'), and 10
epochs of 20 batches with 5 batches of validation ('epoch'). Two modes: everything off, and the library's usual
bar and loggers with the loss and accuracy. Each library has a process of its own, which alternates it with the
plain loop for some seconds and at least 7 rounds of each column; a figure is the median of the ratios of the
rounds, with the quartiles. What is built before training starts (the model, a trainer object) is not timed.
Writes `benchmarks/peers.json`, which the page 'Is it for you?' shows.
"""
import contextlib, gc, io, json, logging, os, platform, subprocess, sys, tempfile, warnings
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import plain
from plain import parts

FILE = Path(__file__).with_suffix('.json')
JOBS = {'step': (400, 0, 1), 'epoch': (20, 5, 10)}      # name: (training batches, validation batches, epochs)


class Batches(list):
    "Ready batches, with what some libraries look for on a loader"
    batch_size, dataset, sampler, num_workers = 32, range(32*400), None, 0

def batches(n, kind=tuple): return Batches(map(kind, plain.batches(n)))

def accuracy(pred, targ): return (pred.argmax(1) == targ).float().mean()


# Each function returns another, which trains: `f(train, valid, n_epochs, on)`,
# `on`: with bar, loggers, loss and accuracy

def raw(train, valid, n_epochs, on):
    model, opt = parts()
    def run():
        for _ in range(n_epochs):
            plain.one_pass(train, model, opt)
            model.eval()
            with torch.no_grad():
                total = sum(F.cross_entropy(model(xb), yb) for xb, yb in valid)
    return run

def trainer_nb(train, valid, n_epochs, on):
    from trainer_nb.all import Learner, accuracy
    model, opt = parts()
    learn = Learner(model, train, valid or None, loss_fn=F.cross_entropy, optim=opt, metrics=[accuracy]*on, display=on)
    return lambda: learn.fit(n_epochs)

def trainer_tools(train, valid, n_epochs, on):
    from trainer_tools.hooks import ProgressBarHook
    from trainer_tools.hooks.metrics import Accuracy, Loss, MetricsHook
    from trainer_tools.trainer import Trainer
    model, opt = parts()
    def step(batch, trainer):
        pred = trainer.model(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]), 'preds': pred, 'targets': batch[1]}
    hooks = [MetricsHook(metrics=[Loss(), Accuracy()], tracker_type=None), ProgressBarHook()] if on else []
    return Trainer(model, step, train, valid or None, optim=opt, epochs=n_epochs, hooks=hooks, device='cpu').fit

def ignite(train, valid, n_epochs, on):
    from ignite.contrib.handlers import ProgressBar
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss
    model, opt = parts()
    trainer = create_supervised_trainer(model, opt, F.cross_entropy,
                                        output_transform=lambda x, y, pred, loss: (pred, y) if on else loss)
    evaluator = create_supervised_evaluator(model,
                                            metrics={'loss': Loss(F.cross_entropy),
                                                     **({'accuracy': Accuracy()} if on else {})})
    if on:
        ProgressBar().attach(trainer)
        Accuracy().attach(trainer, 'accuracy')
        Loss(F.cross_entropy).attach(trainer, 'loss')
    if valid: trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: evaluator.run(valid))
    return lambda: trainer.run(train, max_epochs=n_epochs)

def skorch(train, valid, n_epochs, on):
    from skorch import NeuralNetClassifier
    from skorch.helper import predefined_split
    from torch.utils.data import TensorDataset
    x, y = (torch.cat(o) for o in zip(*train))
    split = predefined_split(TensorDataset(*(torch.cat(o) for o in zip(*valid)))) if valid else None
    net = NeuralNetClassifier(parts()[0], criterion=nn.CrossEntropyLoss, optimizer=torch.optim.SGD, lr=.01,
                              max_epochs=n_epochs, batch_size=32, train_split=split,
                              iterator_train=lambda dataset, **kwargs: train,
                              iterator_valid=lambda dataset, **kwargs: valid, verbose=int(on),
                              **({} if on else {'callbacks': 'disable'}))
    return lambda: net.fit(x, y)

def lightning(train, valid, n_epochs, on):
    import lightning as L
    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = parts()[0]
        def shared(self, batch, name):
            pred = self.model(batch[0])
            loss = F.cross_entropy(pred, batch[1])
            if on: self.log_dict({f'{name}_loss': loss, f'{name}_accuracy': accuracy(pred, batch[1])}, prog_bar=True)
            return loss
        def training_step(self, batch, i): return self.shared(batch, 'train')
        def validation_step(self, batch, i): return self.shared(batch, 'valid')
        def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=.01)
    module = Module()
    trainer = L.Trainer(max_epochs=n_epochs, accelerator='cpu', default_root_dir=tempfile.gettempdir(),
                        barebones=not on, **({'num_sanity_val_steps': 0} if on else {}))
    load = partial(DataLoader, batch_size=None)
    return lambda: trainer.fit(module, load(list(train)), load(list(valid)) if valid else None)

def transformers(train, valid, n_epochs, on):
    from transformers import Trainer, TrainingArguments
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = parts()[0]
        def forward(self, x, labels):
            pred = self.model(x)
            return {'loss': F.cross_entropy(pred, labels), 'logits': pred}
    class Own(Trainer):
        def get_train_dataloader(self): return load(self.train_dataset)
        def get_eval_dataloader(self, dataset=None): return load(self.eval_dataset)
    load = partial(DataLoader, batch_size=None)
    def named(bs): return [{'x': x, 'labels': y} for x, y in bs]
    args = TrainingArguments(tempfile.mkdtemp(), num_train_epochs=n_epochs, optim='sgd', learning_rate=.01,
                             use_cpu=True, report_to=[], save_strategy='no', max_grad_norm=0,
                             eval_strategy='epoch' if valid else 'no', disable_tqdm=not on,
                             logging_strategy='epoch' if on else 'no')
    score = (lambda out: {'accuracy': float((out.predictions.argmax(1) == out.label_ids).mean())}) if on else None
    trainer = Own(Model(), args, train_dataset=named(train), eval_dataset=named(valid), compute_metrics=score)
    return trainer.train

def fastai(train, valid, n_epochs, on):
    import fastai.callback.progress     # noqa: F401
    from fastai.basics import SGD, DataLoaders, Learner, accuracy
    learn = Learner(DataLoaders(train, valid), parts()[0], loss_func=F.cross_entropy, opt_func=SGD, lr=.01,
                    metrics=[accuracy]*on)
    def run():
        with contextlib.nullcontext() if on else learn.no_bar(), contextlib.nullcontext() if on else learn.no_logging():
            learn.fit(n_epochs)
    return run

def keras(train, valid, n_epochs, on):
    import keras
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, 'relu'), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=['accuracy'] if on else None)
    load = partial(DataLoader, batch_size=None)
    return lambda: model.fit(load(list(train)), validation_data=load(list(valid)) if valid else None,
                             epochs=n_epochs, verbose='auto' if on else 0)

PACKAGES = {'trainer_nb': 'trainer_nb', 'trainer_tools': 'trainer-tools', 'ignite': 'pytorch-ignite',
            'skorch': 'skorch', 'lightning': 'lightning',
            'transformers': 'transformers', 'fastai': 'fastai', 'keras': 'keras'}


def measure(name, seconds):
    "dict: job and mode → ratio to the plain loop, its quartiles, and the number of rounds"
    torch.set_num_threads(1)
    make, res = globals()[name], {}
    for job, (n_train, n_valid, n_epochs) in JOBS.items():
        torch.manual_seed(0)
        data = batches(n_train), batches(n_valid), n_epochs
        for on in False, True:
            ratios, end = [], None
            while end is None or perf_counter() < end or len(ratios) < 7:
                took = {}
                for f in (raw, make) if len(ratios)%2 else (make, raw):
                    run = f(*data, on)
                    gc.collect()
                    with contextlib.redirect_stderr(io.StringIO()): took[f] = plain.timed(plain.quiet(run))
                if end is None: end = perf_counter() + seconds       # the first round warms up
                else: ratios.append(took[make]/took[raw])
            res[f'{job}, {"on" if on else "off"}'] = {'ratio': median(ratios), 'quartiles': quantiles(ratios, n=4)[::2],
                                                      'rounds': len(ratios)}
    return res

if __name__ == '__main__':
    if sys.argv[1:2] == ['--one']:
        warnings.simplefilter('ignore')
        logging.disable(logging.WARNING)
        print(json.dumps(measure(sys.argv[2], float(sys.argv[3]))))
        sys.exit()
    seconds = plain.argument(6.)
    results = {'date': str(date.today()), 'python': platform.python_version(), 'torch': torch.__version__,
               'machine': f'{platform.machine()}, {os.cpu_count()} cores, 1 thread used', 'libraries': {}}
    for name, package in PACKAGES.items():
        env = {**os.environ, 'KERAS_BACKEND': 'torch', 'CUDA_VISIBLE_DEVICES': '', 'TERM': 'dumb'}
        res = subprocess.run([sys.executable, __file__, '--one', name, str(seconds)], capture_output=True, text=True,
                             env=env)
        if res.returncode: sys.exit(f'{package} failed: {res.stderr.strip().splitlines()[-1]}')
        results['libraries'][name] = {'version': version(package), 'figures': json.loads(res.stdout.splitlines()[-1])}
    FILE.write_text(json.dumps(results, indent=1) + '\n', encoding='utf-8')
