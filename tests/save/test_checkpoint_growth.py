"What a checkpoint costs does not grow with the number of epochs before it, but for a few bytes of each"
import math

import pytest, torch

from common import batches, make_learner
from trainer_nb.loop.history import History
from trainer_nb.loop.hooks import LambdaHook
from trainer_nb.loop.metrics import accuracy
from trainer_nb.save.snapshot import capture


def parts(x):
    "(Python objects in a nesting, bytes of its tensors); a tensor is one object"
    if isinstance(x, torch.Tensor): return 1, x.nbytes
    inner = [*x.keys(), *x.values()] if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else []
    counts = [parts(o) for o in inner]
    return 1 + sum(n for n, _ in counts), sum(n for _, n in counts)

def test_a_history_of_many_epochs_is_as_few_objects_as_one_of_few():
    "Also where a value is recorded in some epochs only, and a row has an entry that others lack"
    def note(learn):
        if learn.state.epoch % 3: learn.record('some', learn.loss)
        if not learn.state.epoch % 4: learn.record('number', 1.)
    def odd(learn): learn.history.epoch_rows[-1].update({'odd': 1.} if learn.state.epoch % 5 == 0 else {})
    learn, seen = make_learner(train_dl=batches(10), valid_dl=batches(10), metrics=[accuracy],
                               hooks=[LambdaHook(after_loss=lambda learn: learn.training and note(learn),
                                                 after_epoch=odd)]), {}
    learn.add_hook(LambdaHook(
        after_epoch=lambda learn: seen.update({learn.state.epoch: parts(capture(learn)['history'])}), name='Save'))
    learn.fit(120)
    objects, sizes = {n: o for n, (o, _) in seen.items()}, {n: size for n, (_, size) in seen.items()}
    assert objects[120] <= objects[24] + 8
    assert sizes[120] - sizes[60] <= 60*300
    assert sizes[120] - sizes[60] == pytest.approx(2*(sizes[60] - sizes[30]), rel=.1)

ROWS = [
    [], [{'epoch': 0, 'train_loss': .5}], [{'epoch': 0, 'a': math.inf}, {'epoch': 1, 'b': -0.}, {'b': 1, 'a': 2}],
    [{'n': 2**60, 'flag': True, 'text': 'x', 'none': None}, {'n': 1}, {}], [{'epoch': i, 'v': i/7} for i in range(40)]]

def test_rows_come_back_as_they_were():
    "Values, their types, and what is missing"
    def exact(rows): return [{k: (type(v), repr(v)) for k, v in o.items()} for o in rows]
    for rows in ROWS:
        h, again = History(), History()
        h.epoch_rows, h.valid_rows, h.ends = [dict(o) for o in rows], [dict(o) for o in rows[:1]], [*range(len(rows))]
        again.load_state_dict(h.state_dict())
        assert again.epoch_rows == rows and again.valid_rows == rows[:1] and again.ends == h.ends
        assert again.epochs == h.epochs and exact(again.epoch_rows) == exact(rows)
