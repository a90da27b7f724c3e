"`Table` against scikit-learn's encoders, fitted on the training rows; what it learned in files, and in predictions"
import json

import numpy as np, pandas as pd, pytest
from sklearn.preprocessing import OrdinalEncoder

from trainer_nb.all import *

def frame(n=100, seed=0):
    rng = np.random.default_rng(seed)
    res = pd.DataFrame({'kind': rng.choice(['b', 'a', 'c', None], n), 'hour': rng.integers(0, 24, n),
                        'size': rng.normal(50, 9, n), 'count': rng.integers(0, 99, n), 'is_new': rng.random(n) < .5})
    res.loc[rng.random(n) < .2, 'size'] = np.nan
    res['price'] = rng.normal(size=n)
    return res

def test_equals_scikit_learn_fitted_on_the_training_rows():
    df, new = frame(), frame(50, seed=1)
    new.loc[:3, 'kind'] = 'd'
    table = Table(df, 'price', categories=['hour'])
    train, valid = split(df)
    ids = OrdinalEncoder(handle_unknown='use_encoded_value', unknown_value=-1, encoded_missing_value=-1)
    ids.fit(train[['kind', 'hour', 'is_new']])
    for rows, found in (train, table.train), (valid, table.valid), (new, (*table.inputs(new), None)):
        assert np.array_equal(found[0] - 1, ids.transform(rows[['kind', 'hour', 'is_new']]))
        known = train[['size', 'count']]
        want = ((rows[['size', 'count']] - known.mean())/known.std()).fillna(0)
        want['gap'] = rows['size'].isna().astype(float)
        assert np.allclose(found[1], want, atol=1e-6)
    assert table.train[2].dtype == torch.float32 and np.allclose(table.train[2], train.price)
    assert table.n_numbers == 3 and [n for n, _ in table.sizes] == [4, train.hour.nunique() + 1, 3]

def test_validation_rows_teach_nothing():
    train, valid = split(frame())
    other = valid.assign(size=1e6, kind='z', hour=77)
    with pytest.warns(UserWarning, match='no value of column'):
        a, b = (Table(train, 'price', valid=o, categories=['hour']) for o in (valid, other))
    assert a.state_dict() == b.state_dict() and (b.valid[0][:, :2] == 0).all()

def test_one_row_of_each_dtype():
    "A file of one row has other types than that of the training"
    df = frame().convert_dtypes()
    table = Table(df, 'price')
    row = pd.DataFrame([{'kind': 'a', 'hour': 3, 'size': None, 'count': 4, 'is_new': True}])
    assert torch.equal(table.inputs(row)[1], table.inputs(row.convert_dtypes())[1])
    with pytest.raises(ValueError, match='infinite'): table.inputs(df.assign(size=np.inf))

def test_saved_with_the_learner_and_used_by_predict(tmp_path):
    def learner(table, data=True):
        set_seed(0)
        given = dict(train_dl=table) if data else dict(state=[table])
        return Learner(TableNet(table), **given, loss_fn=F.cross_entropy, lr=.01, display=False, device='cpu')
    df = frame().dropna(subset='kind')
    table, other = (Table(o, 'kind', categories=['hour']) for o in (df, df.assign(size=df['size']*3 + 1)))
    assert table.classes == ['a', 'b', 'c'] and table.train[2].max() == 2
    learn, new = learner(table), frame(30, seed=2).drop(columns='kind')
    learn.fit(1)
    learn.save(tmp_path/'a.ckpt')
    want = learn.predict(new)
    assert torch.equal(want, learn(*table.inputs(new)))
    state = json.loads(json.dumps(table.state_dict()))
    for o in other, Table.from_state(state):     # of another scale, and without data
        loaded = learner(o, data=False)
        loaded.load(tmp_path/'a.ckpt')
        assert torch.equal(loaded.predict(new), want)
    with pytest.raises(ValueError, match='state of Table'): other.load_state_dict({**state, 'gaps': 3})
    with pytest.raises(ValueError, match='no column'): loaded.predict(new.drop(columns='size'))
