"Pictures and texts in folders, and new ones that are read in the same way"
import numpy as np, pytest, torch, torch.nn.functional as F
from PIL import Image
from torch import nn

from trainer_nb.data import Images, Texts
from trainer_nb.all import Learner

def folder(path, n=10, size=(6, 4), kinds=('cat', 'dog')):
    "Write pictures, each of one colour"
    for i, kind in enumerate(kinds):
        (path/kind).mkdir(parents=True)
        for k in range(n): Image.new('RGB', size, (20*k, 100*i, 7)).save(path/kind/f'{kind}{k}.png')
    return path

def test_masks_keep_their_ids(tmp_path):
    folder(tmp_path/'x', kinds=['all'])
    (tmp_path/'y').mkdir()
    for k in range(10): Image.fromarray(np.full((4, 6), k, 'uint8')).save(tmp_path/f'y/all{k}.png')
    x, y = Images(tmp_path/'x', masks=tmp_path/'y', size=(8, 12))[9]
    assert x.shape == (3, 8, 12) and y.shape == (8, 12) and y.dtype == torch.int64 and y.unique().tolist() == [9]
    (tmp_path/'y/all4.png').unlink()
    with pytest.raises(FileNotFoundError, match='no masks of all4.png, 1 in all'):
        Images(tmp_path/'x', masks=tmp_path/'y')

def test_as_many_labels_as_pictures(tmp_path):
    with pytest.raises(ValueError, match='labels has 3 entries for 20 samples'):
        Images(folder(tmp_path), labels=['a', 'b', 'c'])

def test_words_are_learned_from_training_texts_alone():
    texts = [f'a plain text pair{i//2} own{i} own{i}' for i in range(20)]
    for seed in range(3):
        made = Texts(texts, [*'ab']*10, valid=.5, seed=seed)
        x, y = made.train
        assert x.shape == (10, 6) and y.bincount().tolist() == [5, 5]
        n_texts = [int((x == i).any(1).sum()) for i in range(2, len(made.words))]
        assert min(n_texts) == 2 and max(n_texts) == 10     # a word that one training text has is unknown
    assert made.decode(x[0, [0, 1, 2, 4]].tolist()) == 'a plain text [unknown]'

def test_a_learner_takes_them_whole_and_reads_new_ones(tmp_path):
    images = Images(folder(tmp_path))
    learn = Learner(nn.Sequential(nn.Flatten(), nn.Linear(72, 2)), images, loss_fn=F.cross_entropy, display=False)
    learn.fit(1)
    paths = [tmp_path/'dog/dog3.png', tmp_path/'cat/cat1.png']
    with torch.no_grad(): expected = learn.model.eval()(images.inputs(paths)[0])
    assert torch.equal(learn.predict(paths), expected)
    with pytest.raises(TypeError, match='pass a list of texts'): learn.predict(paths[0])
