"`Metric(f, whole=True)` has the values of scikit-learn on all predictions of a pass"
from functools import partial

import numpy as np, pytest, torch, torch.nn.functional as F
from scipy.special import softmax
from sklearn import metrics as sk
from torch.utils.data import DataLoader, TensorDataset

from common import check_resume, make_learner, make_model, problem, stop_when
from trainer_nb.all import AMP, CancelStep, LambdaHook, Metric, TensorLoader, accuracy

X, Y = problem(47, 2)       # batches of 10: the last one is ragged

def loader(part=slice(None), bs=10): return DataLoader(TensorDataset(X[part], Y[part]), bs)

VALID = loader()

def ranked(pred, targ): return sk.roc_auc_score(targ, softmax(pred, 1), multi_class='ovr')
def by_class(pred, targ): return sk.f1_score(targ, pred.argmax(1), average=None, labels=range(3))
def counts(pred, targ): return {'kappa': sk.cohen_kappa_score(targ, pred.argmax(1)), 'n': len(targ)}

def metrics(**kwargs):
    return [accuracy, Metric(ranked, 'auc', whole=True, **kwargs), Metric(counts, whole=True, **kwargs),
            Metric(by_class, 'f1', classes=['a', 'b', 'c'], whole=True, **kwargs)]

def expected(pred, targ, prefix='valid_'):
    pred, targ = np.asarray(pred), np.asarray(targ)
    res = {'auc': ranked(pred, targ), **counts(pred, targ), **dict(zip(['f1/a', 'f1/b', 'f1/c'], by_class(pred, targ)))}
    return {prefix + k: v for k, v in res.items()}

def learner(valid=VALID, **kwargs):
    torch.manual_seed(0)
    return make_learner(make_model(), TensorLoader(X, Y, bs=10), valid, seed=1, **{'metrics': metrics(), **kwargs})

def values(row, names): return {k: row[k] for k in names}

def test_equal_to_scikit_learn_on_all_predictions():
    "Of each validation set and of all; scikit-learn's functions take targets first; keys choose what they get"
    calls = []
    def f(pred, targ):
        calls.append((type(pred), pred.shape, targ.dtype))
        return 0.
    def step(batch, learn):
        pred = learn.model(batch[0])
        return {'loss': F.cross_entropy(pred, batch[1]), 'pred': pred, 'id': pred.argmax(1), 'targ': batch[1]}
    parts = {'valid_': slice(47), 'valid_a_': slice(21), 'valid_b_': slice(21, 47)}
    learn = learner({'a': loader(parts['valid_a_'], 8), 'b': loader(parts['valid_b_'], 8)}, train_step=step, metrics=[
        *metrics(), Metric(f, whole=True), Metric(sk.balanced_accuracy_score, pred='id', whole=True),
        Metric(partial(sk.recall_score, average='macro'), 'recall', pred='id', whole=True)])
    learn.fit(2)
    row, pred = learn.history.epoch_rows[-1], learn.predict(VALID)
    assert learn.validate().items() <= row.items()
    for prefix, part in parts.items():
        ids = pred[part].argmax(1)
        right = expected(pred[part], Y[part], prefix)
        right |= {f'{prefix}recall': sk.recall_score(Y[part], ids, average='macro'),
                  f'{prefix}balanced_accuracy_score': sk.balanced_accuracy_score(Y[part], ids)}
        assert values(row, right) == right
    assert 'train_accuracy' in row and not any(k.startswith(('train_auc', 'train_f1')) for k in row)
    assert len(calls) == 9 and calls.count((np.ndarray, (47, 3), np.int64)) == 3        # once in each pass

def test_training_if_asked_in_bfloat16_and_without_cancelled_batches():
    "Predictions of training are those of the steps, before each of them"
    seen = []
    def look(learn):
        if learn.training: seen.append((learn.pred.detach().float(), learn.batch[1]))
    def every_second(learn):
        if not learn.training and learn.phase.pass_.n % 2: raise CancelStep
    hooks = [AMP(dtype=torch.bfloat16), LambdaHook(before_step=every_second, after_loss=look)]
    learn = learner(metrics=metrics(train=True), hooks=hooks)
    learn.fit(1)
    counted, pred = torch.arange(47)//10 % 2 == 0, learn.predict(VALID).float()
    right = expected(*map(torch.cat, zip(*seen)), 'train_') | expected(pred[counted], Y[counted])
    assert values(learn.history.epoch_rows[0], right) == right

@pytest.mark.parametrize('training', [True, False])
def test_resumed_in_the_middle(training, tmp_path):
    def make(): return learner(metrics=metrics(train=training))
    def when(learn): return learn.training == training and learn.history.n_steps + learn.valid_idx == 7 + training
    check_resume(make, tmp_path, stop_when(when), n_epochs=2)

def test_two_processes():
    "Also where one rank has no sample of the last batch"
    def make(): return learner(TensorLoader(X[:21], Y[:21], bs=10), metrics=metrics(train=True))
    alone, both = make(), make()
    for p in alone.model, both.model: p[2].p = 0.
    alone.fit(1)
    both.launch(2, 1)
    names = [o for o in alone.history.epochs if o not in ('lr', 'time_s')]
    assert {'train_auc', 'valid_f1/c'} <= {*names}
    for name in names: assert both.history.epochs[name] == pytest.approx(alone.history.epochs[name], rel=1e-6), name
