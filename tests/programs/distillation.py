"A student learns from a teacher in evaluation mode, which stays as it is (Hinton et al. 2015)"
import torch, torch.nn.functional as F
from torch import nn

from programs import loaders, loop, mean, said
from trainer_nb.all import Freeze, Learner, accuracy

N_EPOCHS = 2

def network(width):
    return nn.Sequential(nn.Linear(5, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
                         nn.Dropout(.2), nn.Linear(width, 3))

def both():
    "Student and teacher"
    nets = nn.ModuleDict({'student': network(8), 'teacher': network(24)})
    nets['teacher'].requires_grad_(False).eval()
    return nets

def kd_loss(student, teacher, labels, t=4., alpha=.7):
    soft = F.kl_div(F.log_softmax(student/t, 1), F.softmax(teacher/t, 1), reduction='batchmean')
    return alpha*t*t*soft + (1 - alpha)*F.cross_entropy(student, labels)

# The loop by hand

def plain():
    torch.manual_seed(0)
    nets = both()
    student, teacher = nets['student'], nets['teacher']
    def loss_of(batch):
        with torch.no_grad(): known = teacher(batch[0])
        return kd_loss(student(batch[0]), known, batch[1])
    def right(batch): return (student(batch[0]).argmax(1) == batch[1]).sum().item()
    train_dl, valid_dl = loaders(48)
    return nets, said(loop(student, train_dl, torch.optim.Adam(student.parameters(), lr=1e-2), loss_of,
                           after=lambda: {'valid_accuracy': mean(student, valid_dl, right)}))

# With a Learner

def step(batch, learn):
    x, y = batch
    with torch.no_grad(): known = learn.model['teacher'](x)
    pred = learn.model['student'](x)
    return {'loss': kd_loss(pred, known, y), 'pred': pred, 'targ': y}

def learner(hooks=(), **kwargs):
    torch.manual_seed(0)
    nets = both()
    opt = torch.optim.Adam(nets['student'].parameters(), lr=1e-2)
    hooks = [Freeze('teacher', in_eval=True), *hooks]       # a fit puts the whole model into training mode
    return Learner(nets, *loaders(48), train_step=step, optim=opt, metrics=[accuracy], hooks=hooks, **kwargs)
