"Data that public bug reports got wrong: each is read with its right values, or refused with its place"
import numpy as np, pandas as pd, psutil, pytest, torch, torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from common import alive, check_resume, make_learner, problem, stop_at
from trainer_nb.all import GradAccum, Images, LambdaHook, Learner, Texts, split

X, Y = problem(40)

# Pictures

def folder(path, *names, make=lambda i: Image.new('RGB', (8, 6), (i, 0, 0)), n=5, suffix='.png'):
    for name in names:
        (path/name).mkdir(parents=True)
        for i in range(n): make(i).save(path/name/f'{i}{suffix}')
    return path

NOISE = np.random.default_rng(0).random((6, 8))

@pytest.mark.parametrize('suffix, values, right', [
    ('.png', (NOISE*255).astype('uint8'), 1/255), ('.png', (NOISE*65535).astype('uint16'), 1/65535),
    ('.png', (NOISE*4095).astype('uint16'), 1/65535),                   # 12 bits, in 16
    ('.tif', (NOISE*1e6).astype('int32'), 1), ('.tif', (NOISE*3 - 1).astype('float32'), 1)])
@pytest.mark.parametrize('mode', ['L', 'RGB'])
def test_pictures_of_all_depths_keep_their_values(suffix, values, right, mode, tmp_path):
    images = Images(folder(tmp_path, 'a', 'b', make=lambda i: Image.fromarray(values), suffix=suffix), mode=mode)
    x = images[0][0]
    assert x.shape == (1 if mode == 'L' else 3, 6, 8) and x.dtype == torch.float32
    for channel in x: assert torch.allclose(channel, torch.from_numpy(values.astype('float64')*right).float())

def test_a_picture_is_turned_as_its_exif_data_says(tmp_path):
    exif = Image.Exif()
    exif[0x112] = 6         # a camera that was held upright
    red = Image.new('RGB', (8, 6))
    red.paste((255, 0, 0), (0, 0, 8, 1))        # its first row, which is the right edge
    for name in 'ab':
        (tmp_path/name).mkdir()
        for i in range(5): red.save(tmp_path/name/f'{i}.png', exif=exif)
    x = Images(tmp_path)[0][0]
    assert x.shape == (3, 8, 6) and (x[0, :, -1] == 1).all() and x[0, :, 0].sum() == 0

def test_a_file_that_cannot_be_read_is_named(tmp_path):
    images = Images(folder(tmp_path, 'a', 'b'), size=6)
    path = images.files[3]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(Exception) as e: [images[i] for i in range(5)]       # noqa: PT011  PIL has several
    assert str(path) in str(e.value) + ''.join(e.value.__notes__)

@pytest.mark.parametrize('name', ['valid', 'val', 'validation'])
def test_a_folder_that_is_divided_stays_so(name, tmp_path):
    folder(tmp_path/'train', 'cat', 'dog')
    folder(tmp_path/name, 'cat', 'dog', n=3)
    folder(tmp_path/'test', 'cat', 'dog', n=2)
    images = Images(tmp_path)
    assert images.classes == ['cat', 'dog'] and len(images.train) == 10 and len(images.valid) == 6
    assert {images.files[i].parts[-3] for i in images.valid.indices} == {name}
    assert {images.files[i].parts[-3] for i in images.train.indices} == {'train'}

def test_a_size_for_both(tmp_path):
    assert Images(folder(tmp_path, 'a', 'b'), size=4)[0][0].shape == (3, 4, 4)

# Labels

@pytest.mark.parametrize('missing', [None, float('nan'), np.nan])
def test_missing_labels_are_refused_with_their_place(missing, tmp_path):
    with pytest.raises(ValueError, match=r"3 labels are missing, .* at index 3, of 'bad d'"):
        Texts(['good a', 'bad b', 'good c', 'bad d']*3, [1, 0, 1, missing]*3)
    files = [*map(str, sorted(folder(tmp_path, 'a', 'b').rglob('*.png')))]
    with pytest.raises(ValueError, match=r'1 labels are missing, .* at index 9, of .*4\.png'):
        Images(files, ['x', 'y', 'x']*3 + [missing])

def test_missing_targets_are_refused_with_their_row():
    y = X.sum(1)
    y[[7, 9]] = float('nan')
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    for targets in y, y.numpy(), pd.Series(y.numpy()):
        with pytest.raises(ValueError, match='2 of 40 targets are nan, the first one in row 7'):
            Learner(model, (X, targets), loss_fn=F.mse_loss)
    Learner(model, (X, torch.stack([y, y], 1)), loss_fn=F.mse_loss, display=False)      # a loss may leave gaps out

# Frames

def test_frames_are_matched_by_the_names_of_their_columns():
    df = pd.DataFrame(X.numpy(), columns=[*'abcd'])
    y = (3*df.a - df.b).astype('float32')
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    learn = Learner(model, (df, y), (df[[*'dcba']], y), loss_fn=F.mse_loss, display=False, lr=.1)
    learn.fit(2)
    assert learn.validate() == learn.validate((df, y)) == learn.validate((df[[*'badc']], y))
    assert torch.equal(learn.predict(df), learn.predict(df[[*'cbad']]))
    with pytest.raises(ValueError, match='without d, and with e'): learn.predict(df.rename(columns={'d': 'e'}))
    with pytest.raises(ValueError, match='without d, and with none'): learn.validate((df[[*'abc']], y))
    learn.valid_dl = df.assign(e=0.), y
    with pytest.raises(ValueError, match='without none, and with e'): learn.fit(1)

# Loaders

class Short(DataLoader):
    "Ends before its length says"
    def __iter__(self):
        for i, batch in zip(range(3), super().__iter__()): yield batch

class ShortList(list):
    def __iter__(self): return iter(self[:3])

@pytest.mark.parametrize('make', [
    lambda: Short(TensorDataset(X, Y), 8), lambda: ShortList(zip(X.split(8), Y.split(8)))], ids=['loader', 'list'])
def test_a_length_that_is_not_torchs_is_not_trusted(make):
    "The last window of an epoch is stepped with, though the length tells of two more batches"
    learn = make_learner(nn.Linear(4, 3), make(), hooks=[GradAccum(4)])
    learn.fit(5)
    assert learn.state.optimizer_step == 5 and learn.state.samples_seen == 5*24

class Epochs(Dataset):
    epoch = 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([float(self.epoch)]), torch.zeros(1)

def test_workers_that_stay_are_told_the_epoch():
    seen = []
    dl = DataLoader(Epochs(), 8, num_workers=1, persistent_workers=True)
    look = LambdaHook(before_step=lambda learn: seen.append(learn.batch[0][0].item()))
    make_learner(nn.Linear(1, 1), dl, loss_fn=F.mse_loss, hooks=[look]).fit(3)
    assert seen == [0, 1, 2]

# Split

def test_groups_stay_together():
    groups = np.repeat(['ann', 'bob', 'cy', 'dee', 'eve'], [10, 4, 10, 8, 8])
    for seed in range(20):
        (x, g), (x_valid, g_valid) = split((X, groups), .25, groups=groups, seed=seed)
        assert not {*g} & {*g_valid} and len(x) + len(x_valid) == 40 and 4 <= len(x_valid) <= 16
    df = pd.DataFrame({'who': groups, 'x': range(40)})
    train, valid = split(df, 10, groups='who')
    assert not {*train.who} & {*valid.who} and len(train) + len(valid) == 40
    assert {len(split((X, groups), .25, groups=groups, seed=i)[1][0]) for i in range(20)} <= {8, 10, 12, 14}
    with pytest.raises(ValueError, match='of one group'): split(X, groups=[1]*40)
    with pytest.raises(ValueError, match='groups has 3 entries for 40'): split(X, groups=[1, 2, 3])

def test_the_end_is_for_validation():
    train, valid = split(torch.arange(10), .3, shuffle=False)
    assert train.tolist() == [*range(7)] and valid.tolist() == [7, 8, 9]

def test_a_column_says_the_classes():
    df = pd.DataFrame({'kind': ['a']*30 + ['b']*10, 'x': range(40)})
    train, valid = split(df, .2, stratify='kind')
    assert (valid.kind == 'b').sum() == 2 and (train.kind == 'b').sum() == 8
    with pytest.raises(ValueError, match="has a column 'king'"): split(df, stratify='king')

class Pairs(Dataset):
    "Samples and their classes, without an end"
    def __len__(self): return 40
    def __getitem__(self, i): return X[i % 40], i % 4

def test_the_last_entry_of_a_sample_is_its_class():
    train, valid = split(Pairs(), .2, stratify=True)
    assert len(train) == 32 and sorted(y for _, y in valid) == [0, 0, 1, 1, 2, 2, 3, 3]

@pytest.mark.parametrize('wrong, words', [
    (dict(test_size=.2), 'here it is valid'), (dict(random_state=0), 'here it is seed'),
    (dict(foo=1), r'help\(split\)')])
def test_names_of_scikit_learn_are_told_ours(wrong, words):
    with pytest.raises(TypeError, match=words): split(X, **wrong)
    with pytest.raises(ValueError, match='one of stratify, groups'): split(X, groups=[0, 1]*20, shuffle=False)

# Wrappers

class DeviceLoader:
    "As everybody has written one: it moves the batches of a loader"
    def __init__(self, loader): self.dl = loader
    def __len__(self): return len(self.dl)
    def __iter__(self):
        for batch in self.dl: yield [o.to('cpu') for o in batch]

class Renamed(DeviceLoader):
    def __init__(self, loader): self.dataloader = loader
    def __len__(self): return len(self.dataloader)
    def __iter__(self):
        for batch in self.dataloader: yield batch

@pytest.mark.filterwarnings('ignore:resume. train_dl')
@pytest.mark.parametrize('wrapper', [DeviceLoader, Renamed])
@pytest.mark.parametrize('n_workers, stays', [(0, False), (1, False), (1, True)])
def test_a_wrapper_is_looked_through(wrapper, n_workers, stays, tmp_path):
    "The generator of the loader inside is part of a stop, and no worker is left of it"
    def make():
        torch.manual_seed(0)
        dl = DataLoader(TensorDataset(X, Y), 8, shuffle=True, generator=torch.Generator().manual_seed(3),
                        num_workers=n_workers, persistent_workers=stays)
        return make_learner(nn.Linear(4, 3), wrapper(dl))
    before = {o.pid for o in psutil.Process().children(recursive=True)}
    check_resume(make, tmp_path, stop_at(3), stop_at(7), n_epochs=3)
    learn = make()
    def boom(learn):
        if learn.state.optimizer_step == 2: raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError) as e: learn.fit(1, hooks=LambdaHook(after_step=boom))
    del e
    learn.fit(1, hooks=stop_at(4))
    assert learn.cancelled == 'stop'
    assert not [o for o in psutil.Process().children(recursive=True) if o.pid not in before and alive(o.pid)]
