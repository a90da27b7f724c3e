"Whatever people have is taken: losses are those of a loader made by hand"

import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from common import plain_loop
from trainer_nb.all import Learner, SeededLoader, set_seed, split

N, BS = 22, 5
x = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
y = (x @ torch.tensor([[1.], [-2.], [.5]])).float()
samples = list(zip(x, y))

class Mapped(Dataset):
    def __len__(self): return N
    def __getitem__(self, i): return x[i], y[i]

class Batched(Mapped):
    "Fetches many samples at once"
    def __getitems__(self, idx): return [(x[i], y[i]) for i in idx]

class Stream(IterableDataset):
    def __iter__(self): return iter(samples)

class Sized(Stream):
    def __len__(self): return N

class HuggingFace:
    "What `datasets.Dataset` offers"
    column_names = ['x', 'labels']
    def __init__(self, kind='torch'): self.format = {'type': kind}
    def __len__(self): return N
    def __getitem__(self, i): return {'x': x[i], 'labels': y[i]}
    def with_format(self, kind): return HuggingFace(kind)

class Named(nn.Linear):
    def forward(self, x): return super().forward(x)

def memory_map(tmp_path, a, name):
    np.save(tmp_path/name, a)
    return np.load(tmp_path/name, mmap_mode='r')

frame = pd.DataFrame(x.numpy(), columns=list('abc'))
wide = frame.astype('float64')
target = pd.Series(y.numpy()[:, 0], name='y')

# name → (data, how it is shuffled for training)
FORMS = {
    'tensor and array': (lambda t: (x, y.numpy()), 'cut'),
    'float64 memory maps': (lambda t: (memory_map(t, x.double().numpy(), 'x.npy'),
                                       memory_map(t, y.double().numpy(), 'y.npy')), 'cut'),
    'float64 frame': (lambda t: (wide, target.astype('float64').to_frame()), 'cut'),
    'nullable frame': (lambda t: (wide.astype('Float64'), target.to_frame()), 'cut'),
    'TensorDataset': (lambda t: TensorDataset(x, y), 'drawn'),
    'Dataset with __getitems__': (lambda t: Batched(), 'drawn'),
    'list of pairs': (lambda t: DataLoader(samples, BS, shuffle=True), 'drawn'),
    'Hugging Face': (lambda t: HuggingFace(), 'drawn'),
    'SeededLoader': (lambda t: SeededLoader(Mapped(), BS), 'in order'),
    'iterable dataset with length': (lambda t: Sized(), 'in order'),
    'dicts': (lambda t: [{'x': a, 'labels': b} for a, b in zip(x.split(BS), y.split(BS))], 'in order'),
}

def by_hand(how, model):
    "The losses of an epoch, in plain PyTorch"
    if how == 'cut': batches = [(x[i], y[i]) for i in torch.randperm(N).split(BS)]
    elif how == 'drawn': batches = DataLoader(TensorDataset(x, y), BS, shuffle=True)
    else: batches = list(zip(x.split(BS), y.split(BS)))
    opt = torch.optim.SGD(model.parameters(), .1)
    losses = plain_loop(model, opt, batches, 1, lambda m, b: F.mse_loss(m(b[0]), b[1]))
    with torch.no_grad(): return losses, F.mse_loss(model(x), y, reduction='none')[:, 0]

@pytest.mark.parametrize('name', FORMS)
def test_losses_are_those_of_a_loader_made_by_hand(name, tmp_path, capsys):
    make, how = FORMS[name]
    model = Named(3, 1)
    twin = nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    learn = Learner(model, make(tmp_path), loss_fn=F.mse_loss, optim=torch.optim.SGD, lr=.1, bs=BS, display=False,
                    device='cpu')
    set_seed(1)
    learn.fit(1)
    set_seed(1)
    losses, valid = by_hand(how, twin)
    assert learn.history.steps['train_loss'] == pytest.approx(losses, rel=1e-5)
    assert torch.allclose(model.weight, twin.weight, atol=1e-6)
    if name != 'list of pairs':     # it shuffles
        assert torch.allclose(learn.results(make(tmp_path)).loss, valid, atol=1e-5)
    said = capsys.readouterr().out.count('cast to float32')
    assert said == (name in ('float64 memory maps', 'float64 frame', 'nullable frame'))

def test_other_data_are_named():
    def learn(data): return Learner(nn.Linear(3, 1), data, loss_fn=F.mse_loss, display=False)
    words = frame.assign(city='Ulm', when=pd.Timestamp('2020-01-01'))
    with pytest.raises(TypeError, match="'city'.*'when'.*select_dtypes"): learn((words, target))
    with pytest.raises(TypeError, match='DataFrame alone is no loader: pass a tuple'): learn(frame)
    with pytest.raises(TypeError, match=r'format None.*with_format\("torch"\)'): learn(HuggingFace(None))

@pytest.mark.parametrize('n, valid, kind', [
    (10, .2, 'arrays'), (7, 3, 'frames'), (13, 1, 'list'), (10, .2, 'Dataset'), (1000, .1, 'tensor')])
def test_a_split_has_every_sample_once(n, valid, kind):
    a = torch.arange(n)
    data = {'arrays': (a.numpy(), a.numpy()*10), 'frames': (pd.DataFrame({'a': a}), pd.Series(a*10)),
            'list': a.tolist(), 'Dataset': TensorDataset(a), 'tensor': a}[kind]
    rng = torch.get_rng_state()
    def ids(o):
        if not isinstance(o, tuple): return [int(v[0] if kind == 'Dataset' else v) for v in o]
        assert (np.asarray(o[0]).reshape(-1)*10 == np.asarray(o[1])).all()
        return np.asarray(o[0]).reshape(-1).tolist()
    parts = split(data, valid)
    train, held = map(ids, parts)
    assert sorted(train + held) == list(range(n)) and torch.equal(rng, torch.get_rng_state())
    assert len(held) == (round(valid*n) if isinstance(valid, float) else valid)
    assert ids(split(data, valid)[1]) == held and (n < 10 or ids(split(data, valid, seed=1)[1]) != held)
    assert type(parts[1]) is type(data) or kind == 'Dataset'

def test_a_split_that_cannot_be():
    with pytest.raises(ValueError, match='valid is True'): split((x, y), True)
    with pytest.raises(ValueError, match='must agree'): split((x, y[:3]))
    with pytest.raises(TypeError, match='got a Stream'): split(Stream())
    with pytest.raises(TypeError, match='one label for each sample'): split((x, x), stratify=True)
