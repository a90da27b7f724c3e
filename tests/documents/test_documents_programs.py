"The programs of four documents, as their readers first write them: each runs, or its error has what works here"
import logging
from importlib.util import find_spec
from types import SimpleNamespace

import pytest, torch, torch.nn.functional as F
from torch import nn

from common import batches, close, make_learner, plain_model, problem, same, weights
from trainer_nb.all import (
    EMA, Accelerate, Checkpoint, CSVLogger, EarlyStopping, GradAccum, GradClip, Hook, JSONLLogger, LambdaHook, Learner,
    Log, LRScheduler, MainProcessHook, Metric, TensorBoardLogger, WarmupCosine, accuracy, load_model, set_seed)

X, Y = problem(48)


# https://keras.io/examples/keras_recipes/trainer_pattern/

class MyTrainer(Learner):
    "A step for training, one for tests, and metrics, for any model"
    def train_step(self, batch):
        x, y = batch
        y_pred = self.model(x)
        return {'loss': F.cross_entropy(y_pred, y), 'pred': y_pred, 'targ': y}

    def eval_step(self, batch):
        return {'pred': self.model(batch[0]), 'targ': batch[1]}

def pictures():
    "Handwritten digits, enlarged to the 28 × 28 pixels of MNIST: ((x, y) of training, (x, y) of tests)"
    data = pytest.importorskip('sklearn.datasets').load_digits()
    x, y = torch.tensor(data.images).float()/16, torch.tensor(data.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = F.interpolate(x[order, None], (28, 28))[:, 0], y[order]
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])

def dense(width, dropout):
    set_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(28*28, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))

@pytest.mark.parametrize('width, dropout, optim, least', [     # Keras: .9265 and .9789 on MNIST after five epochs
    (256, .2, lambda params: torch.optim.SGD(params, lr=.01), .84),
    (512, .4, lambda params: torch.optim.Adam(params, lr=1e-3), .95)], ids=['SGD', 'Adam'])
def test_keras_two_models_share_a_trainer(width, dropout, optim, least):
    "Accuracies and weights are those of a plain loop over the same batches, bit for bit"
    train, test = pictures()
    seen = []       # batches, and the random state in which dropout begins
    def note(learn):
        if learn.training: seen.append((*learn.batch, torch.get_rng_state()))
    learn = MyTrainer(dense(width, dropout), train, test, optim=optim, metrics=[accuracy], bs=64, seed=2,
                      device='cpu', display=False, hooks=LambdaHook(before_step=note))
    found = learn.fit(5).epochs['valid_accuracy'][-1]
    plain = dense(width, dropout)
    opt = optim(plain.parameters())
    for x, y, state in seen:
        torch.set_rng_state(state)
        opt.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        opt.step()
    right = (plain.eval()(test[0]).argmax(1) == test[1]).sum().item()
    assert same(weights(plain), weights(learn.model)) and found == pytest.approx(right/len(test[1]), abs=1e-7)
    assert found > least
    with pytest.raises(AttributeError, match='compile'): learn.compile(optimizer='sgd')


# https://ssslakter.github.io/trainer-tools/reference/trainer/

def train_step(batch, learn):
    x, y = batch
    preds = learn.model(x)
    return {'loss': F.cross_entropy(preds, y), 'preds': preds, 'targets': y}

def linear():
    set_seed(0)
    return nn.Linear(4, 3)

class Clips(Hook):
    "As GradClipHook does there, which assigns a step of the trainer"
    def do_opt_step(self, learn, nxt):
        nn.utils.clip_grad_norm_(learn.model.parameters(), .1)
        return nxt()

class Largest(MainProcessHook):
    ord = 3
    largest = 0.
    def after_step(self, learn):
        if learn.training and learn.stepped: self.largest = max(self.largest, learn.loss.item())
    def state_dict(self): return {'largest': self.largest}
    def load_state_dict(self, state): self.largest = state['largest']

def trainer(*hooks, **kwargs):
    return Learner(linear(), batches(48), batches(seed=2), train_step=train_step, optim=torch.optim.SGD, lr=.5,
                   metrics=Metric(accuracy, pred='preds', targ='targets'), hooks=hooks, display=False, **kwargs)

def test_trainer_tools_a_hook_acts_in_each_fit():
    mine, ours, without = trainer(Clips()), trainer(GradClip(.1)), trainer()
    for learn in mine, ours, without:
        for _ in range(2): learn.fit(1)
    assert close(mine.model, ours.model) and not close(mine.model, without.model)

def test_trainer_tools_a_trainer_with_hooks(tmp_path, capsys):
    "Schedule, accumulation, clipping, average, metrics in a file, checkpoints; it lists them, and resumes"
    def make(*hooks):
        return trainer(LRScheduler(lambda opt, n: torch.optim.lr_scheduler.CosineAnnealingLR(opt, n)), GradAccum(2),
                       GradClip(1.), EMA(.9), Largest(), *hooks, config={'width': 4}, seed=1)
    def saving():
        return make(JSONLLogger(tmp_path/'metrics.jsonl'), Checkpoint(tmp_path, every='10 steps', keep=3))
    def fail(learn):
        if learn.state.optimizer_step == 12: raise RuntimeError
    whole = make()
    whole.fit(3)
    with pytest.raises(RuntimeError): saving().fit(3, hooks=[LambdaHook(after_step=fail)])
    learn = saving()
    learn.fit(3, resume=True)
    assert same(weights(learn.model), weights(whole.model))
    assert learn.get_hook(Largest).largest == whole.get_hook(Largest).largest > 0
    assert learn.state.optimizer_step == 15 and learn.state.samples_seen == 3*48 and learn.state.num_processes == 1
    table = str(learn.describe_hooks(all=True))
    assert all(o in table for o in ('GradAccum', 'GradClip', 'Largest', 'after_cancel'))
    assert len((tmp_path/'metrics.jsonl').read_text().splitlines()) == 3*10 + 3*2


# https://theaisummer.com/tensorflow-training-loop/

class UnetTrainer:
    "The class of the article: it trains, logs, saves checkpoints and a summary, and the model in the end"
    def __init__(self, model, data, loss_fn, optimizer, metric, epoches, folder):
        self.folder, self.epoches = folder, epoches
        self.learn = Learner(
            model, data, loss_fn=loss_fn, optim=optimizer, metrics=[metric], display=False, config={'epoches': epoches},
            hooks=[Log('2 steps', 'trainer'), Checkpoint(folder/'ckpts', keep=3, monitor=None),
                   CSVLogger(folder/'summary.csv')])

    def train(self):
        self.learn.fit(self.epoches, resume=True)
        self.learn.export(self.folder/'unet')

def unet(): return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))

def test_production_article_a_trainer_class(tmp_path, caplog):
    caplog.set_level('INFO')
    set_seed(0)
    model = unet()
    x = torch.rand(20, 1, 8, 8)
    masks = (x[:, 0] > .5).long() + (x[:, 0] > .8)
    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = [*zip(x.split(5), masks.split(5))]
    trainer = UnetTrainer(model, data, nn.CrossEntropyLoss(), optim, accuracy, 4, tmp_path)
    tensorboard = find_spec('tensorboard') is not None
    if tensorboard: trainer.learn.add_hook(TensorBoardLogger(tmp_path/'tb'))
    trainer.train()
    said = [o.getMessage() for o in caplog.records if o.levelno == logging.INFO and o.name == 'trainer']
    assert [o.split(' · ')[1] for o in said if '· loss ' in o] == [f'batch {n}/16' for n in range(2, 17, 2)]
    saved = [o for o in said if o.startswith('saved ')]
    assert [o.split(' ', 2)[2] for o in saved] == [f'after epoch {i}' for i in range(4)]
    kept = sorted(o.name for o in (tmp_path/'ckpts').glob('*.pt'))
    assert kept == [o.split()[1] for o in saved[-3:]]
    rows = (tmp_path/'summary.csv').read_text().splitlines()
    assert rows[0].startswith('batch,epoch,train_loss,train_accuracy') and len(rows) == 5
    h = trainer.learn.history
    assert h.epochs['train_loss'] == sorted(h.epochs['train_loss'])[::-1] and len(h.epochs['train_accuracy']) == 4
    assert same(weights(load_model(tmp_path/'unet', unet())), weights(model))
    assert not tensorboard or any((tmp_path/'tb').iterdir())


# https://www.application-architect.com/posts/how-to-use-custom-training-loops-in-tensorflow/

def networks():
    set_seed(3)
    return nn.ModuleDict({'g': nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4)),
                          'd': nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(.2), nn.Linear(16, 1))})

def bce(logits, target): return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))

def noise(real): return real[:, :2].cos()       # the same in both loops

def gan_step(batch, learn):
    [real], nets = batch, learn.model
    fake = nets['g'](noise(real))
    yield 'd', bce(nets['d'](real), 1.) + bce(nets['d'](fake.detach()), 0.)
    yield 'g', bce(nets['d'](fake), 1.)

def optims(nets): return {k: torch.optim.Adam(nets[k].parameters(), 1e-2, betas=(.5, .999)) for k in 'dg'}

def by_norm(ps, bound):         # tf.clip_by_norm
    for p in ps: p.grad *= bound/max(p.grad.norm().item(), bound)

def by_global_norm(ps, bound):  # tf.clip_by_global_norm
    norm = torch.cat([p.grad.flatten() for p in ps]).norm().item()
    for p in ps: p.grad *= bound/max(norm, bound)

def by_value(ps, bound):        # tf.clip_by_value
    for p in ps: p.grad.clamp_(-bound, bound)

@pytest.mark.parametrize('kind, clip, bound', [('norm_per_tensor', by_norm, .05), ('norm', by_global_norm, .05),
                                               ('value', by_value, .005)])
def test_custom_loops_a_gan_with_clipping(kind, clip, bound):
    "Per network, by the norm of each tensor, of all, or by value"
    data, nets, plain = [[o] for o in X.split(8)], networks(), networks()
    learn = Learner(nets, data, train_step=gan_step, optim=optims(nets), hooks=GradClip(**{kind: bound}), display=False)
    h = learn.fit(2)
    opts, losses = optims(plain), {'d': [], 'g': []}
    for [real] in data*2:
        for k, loss in gan_step([real], SimpleNamespace(model=plain)):
            plain.zero_grad()
            loss.backward()
            clip([*plain[k].parameters()], bound)
            opts[k].step()
            losses[k].append(loss.item())
    assert close(plain, nets)
    for k in 'dg': assert h.steps[f'train_loss_{k}'] == pytest.approx(losses[k], rel=1e-4)

@pytest.mark.filterwarnings('ignore:WarmupCosine. planned')
def test_custom_loops_distributed_and_stopped_early(tmp_path):
    "Two processes, a schedule by step, clipping, the best checkpoint and an early end: as in one process"
    def make(folder, *hooks):
        stop, keep = EarlyStopping(2, min_delta=.01), Checkpoint(folder, best_only=True)
        return make_learner(plain_model(), batches(48, bs=8), batches(24, seed=2, bs=8), metrics=[accuracy], lr=.05,
                            seed=1, hooks=[GradClip(1.), WarmupCosine(warmup=.25, start=0.), stop, keep, *hooks])
    alone, learn = make(tmp_path/'a'), make(tmp_path/'b', Accelerate(cpu=True))
    alone.fit(30)
    learn.launch(2, 30)
    assert len(alone.history) == len(learn.history) < 30 and learn.history.steps['lr'] == alone.history.steps['lr']
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(weights(alone.model), weights(learn.model)))
    assert learn.history.epochs['valid_accuracy'] == pytest.approx(alone.history.epochs['valid_accuracy'], abs=1e-6)
    for o in alone, learn:
        assert o.validate()['valid_loss'] == pytest.approx(min(o.history.epochs['valid_loss']), abs=.01)
