"A GPT: tied weights, two groups, warm-up and cosine, accumulation, clipping (as Karpathy's nanoGPT)"
import math

import torch, torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from trainer_nb.all import GradAccum, GradClip, Learner, LRScheduler

N_EPOCHS, N_STEPS, N_ACCUM = 2, 5, 4        # N_STEPS of an epoch, each of N_ACCUM batches
LR, WARMUP = 1e-2, 3
N_WORDS, BLOCK, DIM = 13, 8, 12
TEXT = torch.randint(N_WORDS, (400,), generator=torch.Generator().manual_seed(1))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM, bias=False), nn.LayerNorm(DIM, bias=False)
        self.qkv, self.proj = nn.Linear(DIM, 3*DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4*DIM, bias=False), nn.GELU(),
                                 nn.Linear(4*DIM, DIM, bias=False), nn.Dropout(.1))

    def forward(self, x):                                           # (B, T, DIM)
        both = self.qkv(self.ln1(x)).unflatten(-1, (3, 2, -1))      # (B, T, 3, 2 heads, DIM/2)
        q, k, v = both.permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(att.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(N_WORDS, DIM), nn.Embedding(BLOCK, DIM)
        self.blocks, self.ln = nn.Sequential(Block(), Block()), nn.LayerNorm(DIM, bias=False)
        self.head = nn.Linear(DIM, N_WORDS, bias=False)
        self.wte.weight = self.head.weight

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        return self.head(self.ln(self.blocks(x)))                   # (B, T, N_WORDS)

def get_batch():
    at = torch.randint(len(TEXT) - BLOCK, (4,)).tolist()
    rows = torch.stack([TEXT[i:i + BLOCK + 1] for i in at])
    return rows[:, :-1], rows[:, 1:]

def configure(model):
    params = list(model.parameters())
    groups = [{'params': [p for p in params if p.dim() >= 2], 'weight_decay': .1},
              {'params': [p for p in params if p.dim() < 2], 'weight_decay': 0.}]
    return torch.optim.AdamW(groups, lr=LR, betas=(.9, .95))

def factor(it):
    "Of the rate: a straight line up, then half a cosine wave down to a tenth"
    if it < WARMUP: return (it + 1)/(WARMUP + 1)
    return .1 + .45*(1 + math.cos(math.pi*(it - WARMUP)/(N_EPOCHS*N_STEPS - WARMUP)))

def loss_fn(logits, targets): return F.cross_entropy(logits.flatten(0, 1), targets.reshape(-1))

class Blocks:
    "Batches drawn from the text"
    def __len__(self): return N_STEPS*N_ACCUM
    def __iter__(self): return (get_batch() for _ in range(len(self)))

def learner(**kwargs):
    torch.manual_seed(0)
    model = GPT()
    hooks = [GradAccum(N_ACCUM), GradClip(1.), LRScheduler(lambda opt: LambdaLR(opt, factor))]
    return Learner(model, Blocks(), loss_fn=loss_fn, optim=configure(model), hooks=hooks, **kwargs)
