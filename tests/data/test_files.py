"Pictures and texts in folders: read with their right values, divided, and new ones read in the same way"
import numpy as np, pytest, torch
from PIL import Image

from trainer_nb.all import F, Images, Learner, Texts, nn

NOISE = np.random.default_rng(0).random((4, 6))

def picture(k, i): return Image.new('RGB', (6, 4), (20*k, 100*i, 7))

def folder(path, kinds=('cat', 'dog'), n=5, make=picture, suffix='.png'):
    "Write pictures, which `make` makes by their number and the number of their class"
    for i, kind in enumerate(kinds):
        (path/kind).mkdir(parents=True)
        for k in range(n): make(k, i).save(path/kind/f'{kind}{k}{suffix}')
    return path

@pytest.mark.parametrize('suffix, values, unit', [
    ('.png', (NOISE*255).astype('uint8'), 1/255), ('.png', (NOISE*4095).astype('uint16'), 1/65535),
    ('.tif', (NOISE*1e6).astype('int32'), 1), ('.tif', (NOISE*3 - 1).astype('float32'), 1)])
@pytest.mark.parametrize('mode, n_channels', [('L', 1), ('RGB', 3)])
def test_pictures_of_all_depths_keep_their_values(suffix, values, unit, mode, n_channels, tmp_path):
    x = Images(folder(tmp_path, make=lambda k, i: Image.fromarray(values), suffix=suffix), mode=mode)[0][0]
    assert x.shape == (n_channels, 4, 6) and x.dtype == torch.float32
    for channel in x: assert torch.allclose(channel, torch.from_numpy(values.astype('float64')*unit).float())

def test_a_file_that_cannot_be_read_is_named(tmp_path):
    images = Images(folder(tmp_path), size=6)
    assert images[0][0].shape == (3, 6, 6)
    path = images.files[3]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(Exception) as e: [images[i] for i in range(5)]       # noqa: PT011  PIL has several
    assert str(path) in str(e.value) + ''.join(e.value.__notes__)

def parts(images): return [[images.files[i].parts[-3] for i in o.indices] for o in (images.train, images.valid)]

@pytest.mark.parametrize('name', ['valid', 'val', 'validation', 'test'])
def test_a_folder_that_is_divided_stays_so(name, tmp_path):
    for part, n in {'test': 2, 'train': 5, name: 3}.items(): folder(tmp_path/part, n=n)
    images = Images(tmp_path)
    assert images.classes == ['cat', 'dog'] and parts(images) == [['train']*10, [name]*6]

def test_two_folders(tmp_path):
    for part, n in ('here', 5), ('there', 3): folder(tmp_path/part, n=n)
    for there in tmp_path/'there', str(tmp_path/'there'), sorted(tmp_path.glob('there/*/*')):
        assert parts(Images(tmp_path/'here', valid=there)) == [['here']*10, ['there']*6]
    folder(tmp_path/'other', ['cat', 'bird', 'fox'])
    with pytest.raises(ValueError, match='has the class bird, fox: '): Images(tmp_path/'here', valid=tmp_path/'other')
    with pytest.raises(ValueError, match='share none'): Images(tmp_path/'here', valid=tmp_path/'here')

@pytest.mark.parametrize('wrong, words', [
    (lambda o: Images(o, 48), 'labels is 48: .*size=48'), (lambda o: Images(o/'a', o/'b'), 'labels is .*valid=other'),
    (lambda o: Images([o/'a', o/'b']), 'valid=other'), (lambda o: Images(o/'none'), 'none holds no .*expected a fold'),
    (lambda o: Images(o, size=(3, 48, 48)), r'size is \(3, 48, 48\)'), (lambda o: Images(o, size=48.), 'size is 48.0'),
    (lambda o: Learner(nn.Linear(1, 1), o), 'Images.*Path'),
    (lambda o: Learner(nn.Linear(1, 1), str(o)), 'Images.*got str')])
def test_what_a_person_may_type_first(wrong, words, tmp_path):
    for name in 'ab': folder(tmp_path/name)
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=words): wrong(tmp_path)

def test_predict_takes_a_path_or_a_picture_as_it_takes_a_list(tmp_path):
    rng = np.random.default_rng(0)
    images = Images(folder(tmp_path, make=lambda k, i: Image.fromarray(rng.integers(0, 256, (4, 6, 3), 'uint8'))))
    learn = Learner(nn.Sequential(nn.Flatten(), nn.Linear(72, 2)), images, loss_fn=F.cross_entropy, display=False)
    path = images.files[7]
    expected = learn.predict(images.read(path)[None])
    assert expected.shape == (1, 2) and not torch.equal(expected, learn.predict(images.files[0]))
    for x in path, str(path), [path], Image.open(path), [Image.open(path)]:
        assert torch.equal(learn.predict(x), expected)
    turned = Image.open(path).rotate(90, expand=True)
    turned.getexif()[0x112] = 6     # as cameras do
    assert torch.equal(learn.predict(turned), expected)
    for x in path, Image.open(path):
        with pytest.raises(TypeError, match='nothing in this learner reads one'): Learner(nn.Linear(1, 1)).predict(x)

def test_masks_keep_their_ids(tmp_path):
    x, y = (folder(tmp_path/o, ['all'], 10, make) for o, make in (
        ('x', picture), ('y', lambda k, i: Image.fromarray(np.full((4, 6), k, 'uint8')))))
    image, mask = Images(x, masks=y, size=(8, 12))[9]
    assert image.shape == (3, 8, 12) and mask.shape == (8, 12) and mask.dtype == torch.int64 and (mask == 9).all()
    (y/'all/all4.png').unlink()
    with pytest.raises(FileNotFoundError, match=r'no masks of all4\.png'): Images(x, masks=y)

@pytest.mark.parametrize('missing', [None, float('nan')])
def test_labels_are_as_many_as_samples_and_none_is_missing(missing, tmp_path):
    with pytest.raises(ValueError, match=r"3 labels are missing, .*3, of 'bad d'"):
        Texts(['good a', 'bad b', 'good c', 'bad d']*3, [1, 0, 1, missing]*3)
    files = sorted(folder(tmp_path).rglob('*.png'))
    with pytest.raises(ValueError, match=r'1 labels are missing, .*9, of .*dog4\.png'):
        Images([*map(str, files)], ['x', 'y', 'x']*3 + [missing])
    with pytest.raises(ValueError, match='labels has 3 entries for 10'): Images(tmp_path, labels=['a', 'b', 'c'])

def test_words_are_learned_from_training_texts_alone():
    texts = [f'a plain text pair{i//2} own{i} own{i}' for i in range(20)]
    for seed in range(3):
        made = Texts(texts, [*'ab']*10, valid=.5, seed=seed)
        x, y = made.train
        assert x.shape == (10, 6) and y.bincount().tolist() == [5, 5]
        n_texts = [int((x == i).any(1).sum()) for i in range(2, len(made.words))]
        assert min(n_texts) == 2 and max(n_texts) == 10     # a word that one training text has is unknown
    assert made.decode(x[0, [0, 1, 2, 4]].tolist()) == 'a plain text [unknown]'
