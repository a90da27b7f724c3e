"A student learns from a teacher in evaluation mode, which stays as it is (Hinton et al. 2015)"
import torch, torch.nn.functional as F
from torch import nn

from programs import loaders
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
    train_dl, valid_dl = loaders(48)
    opt = torch.optim.Adam(student.parameters(), lr=1e-2)
    losses, accuracies = [], []
    for epoch in range(N_EPOCHS):
        student.train()
        for x, y in train_dl:
            with torch.no_grad(): known = teacher(x)
            loss = kd_loss(student(x), known, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        student.eval()
        with torch.no_grad():
            right = sum((student(x).argmax(1) == y).sum().item() for x, y in valid_dl)
        accuracies.append(right/len(valid_dl.dataset))
    return nets, {'train_loss': losses, 'valid_accuracy': accuracies}

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
