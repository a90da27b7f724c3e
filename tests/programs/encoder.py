"A classifier of texts that takes mappings and returns one with `loss` and `logits`, as those of transformers"
from collections import OrderedDict

import torch, torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from programs import loop, mean, said
from trainer_nb.all import Learner, LRScheduler, Metric, accuracy

N_EPOCHS, N_STEPS = 2, 6        # steps of an epoch

class Output(OrderedDict):
    "Entries are attributes, too"
    def __getattr__(self, name):
        try: return self[name]
        except KeyError: raise AttributeError(name) from None

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.drop = nn.Embedding(20, 12), nn.Dropout(.1)
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True, dropout=.1)
        self.head = nn.Linear(12, 3)

    def forward(self, input_ids, attention_mask, labels=None):
        x = self.layer(self.drop(self.words(input_ids)), src_key_padding_mask=attention_mask == 0)
        x = (x*attention_mask[..., None]).sum(1)/attention_mask.sum(1, keepdim=True)
        logits = self.head(x)
        if labels is None: return Output(logits=logits)
        return Output(loss=F.cross_entropy(logits, labels), logits=logits)

def texts(n, seed):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 9, (n,), generator=g)
    mask = (torch.arange(8) < lengths[:, None]).long()
    ids, labels = torch.randint(1, 20, (n, 8), generator=g)*mask, torch.randint(3, (n,), generator=g)
    rows = zip(ids, mask, labels)
    return [{'input_ids': i, 'attention_mask': m, 'labels': y} for i, m, y in rows]

def loaders():
    return DataLoader(texts(44, 1), batch_size=8, shuffle=True), DataLoader(texts(20, 2), batch_size=8)

def adamw(params): return torch.optim.AdamW(params, lr=5e-3, weight_decay=.01, eps=1e-5)

def linear(opt):
    "Two steps of warm-up, then a straight line down"
    n = N_EPOCHS*N_STEPS
    return LambdaLR(opt, lambda i: min((i + 1)/3, max(0., (n - i)/(n - 2))))

# The loop by hand

def plain():
    torch.manual_seed(0)
    model = Encoder()
    train_dl, eval_dl = loaders()
    opt = adamw(model.parameters())
    sched = linear(opt)
    lrs = []
    def loss_of(batch):
        lrs.append(sched.get_last_lr()[0])
        return model(**batch).loss
    def right(batch): return (model(**batch).logits.argmax(-1) == batch['labels']).sum().item()
    found = loop(model, train_dl, opt, loss_of, sched, after=lambda: {'valid_accuracy': mean(model, eval_dl, right)})
    return model, {**said(found), 'lr': lrs}

# With a Learner

def learner(**kwargs):
    torch.manual_seed(0)
    metric = Metric(accuracy, pred='logits', targ='labels')
    return Learner(Encoder(), *loaders(), optim=adamw, metrics=[metric],
                   hooks=[LRScheduler(linear)], **kwargs)
