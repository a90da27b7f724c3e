"Whatever people have is taken: losses are those of a loader made by hand; data are divided, or refused"
import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Stream, plain_loop
from trainer_nb.all import Learner, set_seed, split

N, BS = 22, 5
x = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
y = (x @ torch.tensor([[1.], [-2.], [.5]])).float()

class Sized(Stream):
    def __len__(self): return N

class HuggingFace:
    "What `datasets.Dataset` offers"
    column_names = ['input', 'labels']
    def __init__(self, kind='torch'): self.format = {'type': kind}
    def __len__(self): return N
    def __getitem__(self, i): return {'input': x[i], 'labels': y[i]}
    def with_format(self, kind): return HuggingFace(kind)

frame = pd.DataFrame(x.numpy(), columns=list('abc'))
target = pd.Series(y.numpy()[:, 0], name='y')

# name → (data, how it is shuffled for training)
FORMS = {
    'tensor and array': (lambda: (x, y.numpy()), 'cut'),
    'float64 arrays': (lambda: (x.double().numpy(), y.double().numpy()), 'cut'),
    'float64 frame': (lambda: (frame.astype('float64'), target.astype('float64').to_frame()), 'cut'),
    'TensorDataset': (lambda: TensorDataset(x, y), 'drawn'),
    'Hugging Face': (lambda: HuggingFace(), 'drawn'),
    'iterable dataset with length': (lambda: Sized(list(zip(x, y))), 'in order'),
    'dicts': (lambda: [{'input': a, 'labels': b} for a, b in zip(x.split(BS), y.split(BS))], 'in order'),
}

def by_hand(how, model):
    "The losses of an epoch, and then of each sample, in plain PyTorch"
    if how == 'cut': batches = [(x[i], y[i]) for i in torch.randperm(N).split(BS)]
    elif how == 'drawn': batches = DataLoader(TensorDataset(x, y), BS, shuffle=True)
    else: batches = list(zip(x.split(BS), y.split(BS)))
    losses = plain_loop(model, torch.optim.SGD(model.parameters(), .1), batches, 1,
                        lambda m, b: F.mse_loss(m(b[0]), b[1]))
    with torch.no_grad(): return losses, F.mse_loss(model(x), y, reduction='none')[:, 0]

@pytest.mark.parametrize('name', FORMS)
def test_losses_are_those_of_a_loader_made_by_hand(name, capsys):
    make, how = FORMS[name]
    model, twin = nn.Linear(3, 1), nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    learn = Learner(model, make(), loss_fn=F.mse_loss, optim=torch.optim.SGD, lr=.1, bs=BS, display=False,
                    device='cpu')
    set_seed(1)
    learn.fit(1)
    set_seed(1)
    losses, valid = by_hand(how, twin)
    assert learn.history.steps['train_loss'] == pytest.approx(losses, rel=1e-5)
    assert torch.allclose(model.weight, twin.weight, atol=1e-6)
    assert torch.allclose(learn.results(make()).loss, valid, atol=1e-5)
    assert capsys.readouterr().out.count('cast to float32') == ('float64' in name)

def learner(*data):
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    return Learner(model, *data, loss_fn=F.mse_loss, display=False, lr=.1)

def test_other_data_are_named():
    words = frame.assign(city='Ulm', when=pd.Timestamp('2020-01-01'))
    with pytest.raises(TypeError, match="'city'.*'when'.*select_dtypes"): learner((words, target))
    with pytest.raises(TypeError, match='DataFrame alone.* tuple'): learner(frame)
    with pytest.raises(TypeError, match=r'format None.*with_format\("torch"\)'): learner(HuggingFace(None))

def test_frames_are_matched_by_the_names_of_their_columns():
    learn = learner((frame, target), (frame[[*'cba']], target))
    learn.fit(2)
    assert learn.validate() == learn.validate((frame, target)) == learn.validate((frame[[*'bac']], target))
    assert torch.equal(learn.predict(frame), learn.predict(frame[[*'cab']]))
    with pytest.raises(ValueError, match='without c, and with e'): learn.predict(frame.rename(columns={'c': 'e'}))
    with pytest.raises(ValueError, match='without c, and with none'): learn.validate((frame[[*'ab']], target))
    learn.valid_dl = frame.assign(e=0.), target
    with pytest.raises(ValueError, match='without none, and with e'): learn.fit(1)

def test_missing_targets_are_refused_with_their_row():
    targ = y[:, 0].clone()
    targ[[7, 9]] = float('nan')
    for o in targ, pd.Series(targ.numpy()):
        with pytest.raises(ValueError, match='2 of 22 targets .* row 7'): learner((x, o))
    learner((x, torch.stack([targ, targ], 1)))      # a loss may leave gaps out

# Split

@pytest.mark.parametrize('valid, kind', [(.2, 'arrays'), (3, 'frames'), (1, 'list'), (.1, 'Dataset')])
def test_a_split_has_every_sample_once(valid, kind):
    a = torch.arange(20)
    data = {'arrays': (a.numpy(), a.numpy()*10), 'frames': (pd.DataFrame({'a': a}), pd.Series(a*10)),
            'list': a.tolist(), 'Dataset': TensorDataset(a)}[kind]
    def ids(o):
        if not isinstance(o, tuple): return [int(v[0] if kind == 'Dataset' else v) for v in o]
        first, second = (np.asarray(v).reshape(-1) for v in o)
        assert (first*10 == second).all()
        return first.tolist()
    rng, parts = torch.get_rng_state(), split(data, valid)
    train, held = map(ids, parts)
    assert sorted(train + held) == a.tolist() and torch.equal(rng, torch.get_rng_state())
    assert len(held) == (valid*20 if valid < 1 else valid) and (type(parts[1]) is type(data) or kind == 'Dataset')
    assert ids(split(data, valid)[1]) == held != ids(split(data, valid, seed=1)[1])

def test_groups_stay_together():
    df = pd.DataFrame({'who': np.repeat([*'abcde'], [10, 4, 10, 8, 8])})
    for seed in range(9):
        train, valid = split(df, .25, groups='who', seed=seed)
        assert not {*train.who} & {*valid.who} and len(train) + len(valid) == 40 and len(valid) in (8, 10, 12, 14)

@pytest.mark.parametrize('data, kwargs, error, words', [
    (x, dict(valid=True), ValueError, 'valid is True'), ((x, y[:3]), {}, ValueError, 'must agree'),
    (Stream([]), {}, TypeError, 'a Stream'), ((x, x), dict(stratify=True), TypeError, 'one label for each'),
    (x, dict(groups=[1]*N, shuffle=False), ValueError, 'one of stratify, groups'),
    (frame, dict(stratify='king'), ValueError, "column 'king'"), (x, dict(test_size=.2), TypeError, 'is valid'),
    (x, dict(random_state=0), TypeError, 'is seed'), (x, dict(foo=1), TypeError, r'help\(split\)')])
def test_a_split_that_cannot_be(data, kwargs, error, words):
    "Names of scikit-learn are told ours"
    with pytest.raises(error, match=words): split(data, **kwargs)
