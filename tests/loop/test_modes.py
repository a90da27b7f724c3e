"A fit trains the whole model in training mode, except what `Freeze` switches to evaluation mode"
import torch
from torch import nn

from common import batches, make_learner, plain_loop, same, sgd, weights
from trainer_nb.all import Freeze, LambdaHook


class Student(nn.Module):
    "A part that trains, a teacher that is to stay as it is, and a normalization that somebody has closed"
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.3)
        self.head = nn.Linear(8, 3)
        self.teacher = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.5), nn.Linear(8, 3))
        self.teacher.requires_grad_(False)
    def forward(self, x):
        with torch.no_grad(): known = self.teacher(x)
        return self.head(self.drop(self.norm(self.body(x)))) + known

def modes(learn): return {name: m.training for name, m in learn.model.named_modules()}

def test_a_search_keeps_what_is_frozen_in_evaluation_mode():
    seen, model = [], Student()
    model.teacher.eval()
    model.norm.eval()
    look = LambdaHook(before_step=lambda learn: seen.append(modes(learn)))
    learn = make_learner(model, optim=sgd, hooks=[Freeze('teacher', 'norm', in_eval=True), look])
    before = modes(learn)
    learn.lr_find(n_steps=12)
    assert seen and all(o == before for o in seen) and modes(learn) == before

def test_a_part_that_comes_in_evaluation_mode_trains_as_in_a_loop_that_calls_train():
    "`from_pretrained` returns one"
    def make():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(.5)).eval()
        return nn.Sequential(body, nn.Linear(8, 3))
    learn, model = make_learner(make(), train_dl=batches(), optim=sgd), make().train()
    torch.manual_seed(1)
    for _ in range(2): learn.fit(1)
    torch.manual_seed(1)
    assert learn.history.steps['train_loss'] == plain_loop(model, sgd(model.parameters()), batches(), 2)
    assert same(weights(learn.model), weights(model)) and not learn.model[0].training and learn.model.training
    assert learn.lr_find(n_steps=12) and not learn.model[0].training
