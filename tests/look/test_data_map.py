"TrackSamples, the map of the data, and what a review changes"
import csv, os, re

import pytest
from torch.utils.data import Dataset, WeightedRandomSampler
from trainer_nb.all import *
from trainer_nb.data import read_changes

N, BS = 90, 16

def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 5, generator=g)
    return x, x[:, :3].argmax(1)

def learner(train=None, *hooks, loss_fn=F.cross_entropy, n_out=3, track=True, **kwargs):
    set_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, n_out), *[nn.Flatten(0)]*(n_out == 1))
    hooks = [TrackSamples()]*track + [*hooks]
    if not isinstance(train, DataLoader): kwargs['bs'] = BS
    return Learner(model, train or data(), loss_fn=loss_fn, lr=.05, hooks=hooks, display=False, **kwargs)

def held(learn): return learn.hooks.get(TrackSamples).state_dict()

def same(a, b):
    a, b = ({**held(o), 'losses': torch.stack(held(o)['losses']), 'flips': o.data_map.flips} for o in (a, b))
    return all(torch.equal(a[k].nan_to_num(-1), b[k].nan_to_num(-1)) for k in ('losses', 'flips', 'labels'))

class Pairs(Dataset):
    classes = ['a', 'b', 'c']
    def __len__(self): return N
    def __getitem__(self, i): return tuple(o[i] for o in data())

def loaded(**kwargs): return DataLoader(Pairs(), BS, shuffle=True, **kwargs)

# what it keeps

def test_losses_and_forgetting_are_those_of_a_plain_loop():
    learn = learner(loss_fn=nn.CrossEntropyLoss(label_smoothing=.1), track=False)
    (x, y), kept, right = data(), torch.empty(6, N), torch.empty(6, N, dtype=bool)
    for epoch in range(6):
        for at in torch.randperm(N).split(BS):
            pred = learn.model(x[at])
            losses = F.cross_entropy(pred, y[at], reduction='none', label_smoothing=.1)
            kept[epoch, at], right[epoch, at] = losses.detach(), pred.argmax(1) == y[at]
            learn.loss_fn(pred, y[at]).backward()
            learn.opt.step()
            learn.opt.zero_grad()
    ours = learner(loss_fn=nn.CrossEntropyLoss(label_smoothing=.1))
    ours.fit(6)
    m = ours.data_map
    assert torch.equal(m.losses, kept) and m.measure == 'loss'
    assert torch.equal(m.n_forgotten, (right[:-1] & ~right[1:]).sum(0)) and m.n_forgotten.sum() > 3
    assert torch.equal(m.flips == 0, ~right.any(0))

@pytest.mark.parametrize('loss_fn, to_targ', [
    (F.mse_loss, lambda y: y.float()), (nn.BCEWithLogitsLoss(), lambda y: (y > 0).float())])
def test_numbers_and_binary_targets(loss_fn, to_targ):
    x, y = data()
    learn = learner((x, to_targ(y)), loss_fn=loss_fn, n_out=1)
    learn.fit(3)
    m = learn.data_map
    assert m.losses.shape == (3, N) and not m.losses.isnan().any()
    if loss_fn is F.mse_loss:
        assert m.measure == 'loss' and m.by_class() == [] and m.ranked()[0] == m.mean.argmax()
        with pytest.raises(ValueError, match='counted for classes'): m.forgotten()
    else: assert m.measure == 'confidence' and {o['class'] for o in m.by_class()} == {'0', '1'}

def test_samplers_and_workers_do_not_matter():
    def fitted(train):
        learn = learner(train)
        learn.fit(2)
        return learn
    assert same(fitted(loaded()), fitted(loaded(num_workers=2)))
    seeded = [fitted(SeededLoader(Pairs(), BS, shuffle=True, num_workers=n)) for n in (0, 2)]
    assert same(*seeded) and not seeded[0].data_map.losses.isnan().any()
    drawn = []
    some = learner(DataLoader(Pairs(), BS, sampler=WeightedRandomSampler(torch.arange(N).float(), 40)), LambdaHook(
        after_step=lambda learn: drawn.extend(zip(learn.phase.pass_.indices, learn.pred.argmax(1) == learn.batch[1]))))
    some.fit(2)
    flips, right = [0]*N, [False]*N
    for i, now in drawn: flips[i], right[i] = flips[i] + (now.item() != right[i]), now.item()
    assert some.data_map.flips.tolist() == flips and len(drawn) == 80 > len({i for i, _ in drawn})
    seen = ~some.data_map.losses.isnan()
    assert 0 < seen.sum() <= 80 and not seen[:, 0].any()
    assert len(some.data_map.ranked()) == seen.any(0).sum()     # those never seen are not ranked

@pytest.mark.parametrize('stop_at', [3, 6, 8])
def test_a_map_resumes_from_any_batch(stop_at, tmp_path):
    whole = learner()
    whole.fit(3)
    def stop(learn):
        if learn.history.n_steps == stop_at: learn.stop()
    first = learner(None, LambdaHook(after_step=stop, name='Stop'))
    first.fit(3)
    first.save(tmp_path/'a.pt')
    second = learner(None, LambdaHook(after_step=lambda learn: None, name='Stop'))
    second.load(tmp_path/'a.pt')
    second.resume()
    assert same(whole, second)

def test_it_goes_back_with_spike_guard():
    def spoil(learn):
        if learn.training and (learn.state.epoch, learn.state.batch_idx) == (6, 3): learn.batch[0].neg_()
    learn = learner(None, LambdaHook(before_step=spoil), SpikeGuard('skip', warmup=12, every=3, threshold=3.))
    learn.fit(8)
    assert len(learn.spikes) == 1
    assert learn.data_map.losses.isnan().sum() == len(learn.spikes[0]['indices'])       # of the batch left out

@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_two_ranks_keep_the_same_map(tmp_path):
    def stop(learn):
        if learn.training and learn.history.n_steps == 9: learn.request('stop', everywhere=True)
    alone = learner()
    alone.fit(3)
    both = learner()
    both.launch(2, 3)
    a, b = alone.data_map, both.data_map
    assert not b.losses.isnan().any() and torch.allclose(a.losses, b.losses, atol=1e-4)
    assert (a.flips != b.flips).sum() <= 1 and torch.equal(a.labels, b.labels)
    stopped = learner(None, LambdaHook(after_step=stop))
    stopped.launch(2, 3)
    assert 0 < stopped.data_map.losses.isnan().sum() < N
    stopped.launch(2)
    assert same(both, stopped)

def test_many_classes_and_many_changes_of_mind():
    track, x = TrackSamples(), torch.zeros(3, 1)
    y = torch.tensor([1, 100, 40_000])
    class Alternates(nn.Module):        # right in every second epoch
        def __init__(self):
            super().__init__()
            self.w, self.n = nn.Parameter(torch.zeros(1)), 0
        def forward(self, x):
            self.n += 1
            return self.w + F.one_hot(y + self.n % 2 - 1, 40_001).float()
    learn = Learner(Alternates(), [(x, y)], loss_fn=F.cross_entropy, lr=1e-6, hooks=[track], display=False)
    learn.train_dl = TensorLoader(x, y, bs=3)
    learn.fit(301)
    assert learn.data_map.labels.tolist() == y.tolist() and learn.data_map.flips.tolist() == [301]*3

def test_own_steps_and_what_is_refused():
    def step(batch, learn):
        losses = F.cross_entropy(learn.model(batch[0]), batch[1], reduction='none')
        return {'loss': losses.mean(), 'sample_losses': losses}
    learn = learner(train_step=step)
    learn.fit(1)
    assert not learn.data_map.losses.isnan().any()
    with pytest.raises(ValueError, match='sample_losses'): learner(train_step=lambda batch, learn: {
        'loss': F.cross_entropy(learn.model(batch[0]), batch[1])}).fit(1)
    with pytest.raises(ValueError, match="reduction='none'"): learner(loss_fn=lambda p, t: (p.sum(1) - t).mean()).fit(1)
    with pytest.raises(TypeError, match='indices'): learner([data()]).fit(1)
    with pytest.raises(ValueError, match='TrackSamples'): learner(track=False).data_map

def test_an_epoch_that_is_cancelled_keeps_what_it_saw():
    def cancel(learn):
        if learn.state.batch_idx == 3: raise CancelEpoch        # before the hook sees this batch
    learn = learner(None, LambdaHook(after_step=cancel))
    learn.fit(2)
    assert (~learn.data_map.losses.isnan()).sum(1).tolist() == [2*BS, 2*BS]

def test_what_others_write_to_a_batch_later_changes_nothing():
    def spoil(learn):
        for o in (learn.pred.detach(), learn.batch[1]): o.zero_()
    plain = learner()
    plain.fit(1)
    spoilt = learner(None, LambdaHook(after_step=spoil, ord=98))
    spoilt.fit(1)
    assert same(plain, spoilt)

def test_targets_that_do_not_count_are_not_seen():
    learn = learner(loss_fn=nn.CrossEntropyLoss(ignore_index=2))
    learn.fit(2)
    m, counted = learn.data_map, data()[1] != 2
    assert torch.equal(m.losses.isnan().any(0), ~counted) and len(m.ranked()) == counted.sum()
    assert [o['class'] for o in sorted(m.by_class(), key=lambda o: o['class'])] == ['0', '1'] and m.labels.min() == -1

def test_a_probability_is_claimed_only_where_it_is_known():
    def step(batch, learn):
        losses = 10*F.cross_entropy(pred := learn.model(batch[0]), batch[1], reduction='none')
        return {'loss': losses.mean(), 'sample_losses': losses, 'pred': pred, 'targ': batch[1]}
    x, y = data()
    soft = .8*F.one_hot(y, 3) + .2/3
    for train, options in ((None, dict(train_step=step)), ((x, soft), {}),
                           ((x, .8*(y > 0).float() + .1), dict(loss_fn=nn.BCEWithLogitsLoss(), n_out=1))):
        learn = learner(train, **options)
        learn.fit(1)
        assert learn.data_map.measure == 'loss'
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.t = nn.Parameter(torch.ones(()))
        def forward(self, pred, targ): return F.cross_entropy(pred/self.t, targ)
    with pytest.raises(ValueError, match='without parameters'): learner(loss_fn=Tempered()).fit(1)

def test_one_training_set_and_states_of_learners_without_it(tmp_path):
    learn, bare = learner(), learner(track=False)
    learn.save(tmp_path/'fresh.pt')
    bare.fit(1)
    bare.save(tmp_path/'bare.pt')
    learn.load(tmp_path/'bare.pt')
    learn.fit(1)
    x, y = data()
    m = learn.data_map
    learn.train_dl = TensorLoader(x, (y + 1) % 3, bs=BS)
    with pytest.raises(ValueError, match='other labels'): m.show([0])
    with pytest.raises(ValueError, match='another label than before'): learn.fit(1)

# what it shows

def test_points_lie_where_the_values_are():
    learn = learner()
    learn.fit(4)
    m = learn.data_map
    chart = m.chart()
    [panel] = chart.panels
    svg, at = chart.svg(), m.ranked()[0]
    points = {(float(a), float(b)) for a, b in re.findall(r'M([\d.]+),([\d.]+)(?:h0|m-4,0)', svg)}
    for i in m.ranked().tolist():
        x, y = round(float(panel.x(m.variability[i])), 1), round(float(panel.y(m.mean[i])), 1)
        assert any(abs(a - x) <= .11 and abs(b - y) <= .11 for a, b in points), i
    low, high = panel.ylim
    assert panel.y(low) == panel.bottom and panel.y(high) == panel.top
    assert sum(int(re.search(r'\((\d+)\)', o.name)[1]) for o in panel.lines) == N
    texts = [o for _, o in panel.hover]
    assert sum(int(re.search(r'([\d,]+) samples', o)[1]) for o in texts) == N
    assert any(f'# {at}: ' in o for o in texts)

@pytest.mark.parametrize('train', [None, loaded, lambda: SeededLoader(Pairs(), BS, shuffle=True)])
def test_samples_are_shown_by_their_index(train):
    learn = learner(train and train())
    learn.fit(2)
    before = torch.get_rng_state()
    m = learn.data_map
    view = m.show([7, 3])
    assert torch.equal(before, torch.get_rng_state())
    for i, sample, caption in zip([7, 3], view.samples, map(dict, view.captions)):
        assert torch.equal(sample['x'], data()[0][i]) and caption['#'] == str(i)
        label = int(data()[1][i])
        assert caption['target'] == (Pairs.classes[label] if train else str(label))
        assert re.fullmatch(r'\S+ → \S+', caption['loss']) and '<img' in caption['loss'].html
    assert 'class' in repr(m) and m.by_class()[0]['confidence'] <= m.by_class()[-1]['confidence']

# what a review changes

def test_buttons_decide_and_code_does(tmp_path):
    learn = learner(loaded())
    learn.fit(2)
    file = tmp_path/'changes.csv'
    review = learn.data_map.review(3, file=file)
    first, second, third = review.at
    live = review._live()
    tiles = live.children[1].children
    keep, leave = tiles[0].children[1].children
    leave.click()
    assert review.said(first) == 'leave out' and leave.icon and not keep.icon
    tiles[1].children[2].value = 1
    assert review.said(second) == 'label b'
    keep.click()
    assert review.said(first) == 'keep' and not leave.icon
    whole = file.read_text()
    file.write_text('<b>')
    leave.click()
    assert 'ValueError: the first line' in live.children[0].value and review.said(first) == 'keep'
    file.write_text(whole)
    review.mark(third, 'leave out')
    rows = {int(o['index']): (o['action'], o['label']) for o in csv.DictReader(file.open())}
    assert rows == {first: ('keep', ''), second: ('label', '1'), third: ('leave out', '')}
    again = learn.data_map.review(3, file=file)
    assert again.decided == review.decided and again._live().children[1].children[1].children[2].value == 1
    changed = apply_changes(Pairs(), file)
    assert len(changed) == N - 1
    at = [i for i in range(N) if i != third].index(second)
    assert changed[at][1] == 1 and torch.equal(changed[at][0], data()[0][second])

def test_reviews_share_a_file_and_check_what_they_are_told(tmp_path):
    learn = learner()
    learn.fit(max_steps=2)          # which has not seen all samples
    m, file = learn.data_map, tmp_path/'changes.csv'
    one, two = m.review(2, file=file), m.review(2, file=file)
    unseen = m.losses.isnan().all(0).nonzero()[0]
    one.mark(m.ranked()[0], 'leave out')
    two.mark(unseen, label=1)
    assert len(read_changes(file)) == 2 and len(apply_changes(data(), file)[0]) == N - 1
    for wrong in dict(index=N, action='keep'), dict(index=1), dict(index=1, label=2.5), dict(index=1, label='b'):
        with pytest.raises(ValueError): one.mark(**wrong)
    assert len(read_changes(file)) == 2
    second = learner(apply_changes(data(), file))
    second.fit(1)
    with pytest.raises(ValueError, match='other data'): second.data_map.review(1, file=file)
    x, y = data()
    numbers = learner((x, y.float()), loss_fn=F.mse_loss, n_out=1)
    numbers.fit(1)
    review = numbers.data_map.review(1, file=tmp_path/'numbers.csv')
    review.mark(review.at[0], label=2.5)
    assert review.said(review.at[0]) == 'label 2.5' and review._live() and 'label 2.5' in repr(review)
    assert apply_changes((x, y.float()), review.file)[1][review.at[0]] == 2.5

def test_samples_that_are_dicts(tmp_path):
    file = tmp_path/'changes.csv'
    file.write_text('index,action,label,was,of\n0,leave out,,,\n1,label,2,,\n')
    changed = apply_changes([{'x': i, 'labels': torch.tensor(0)} for i in range(3)], file)
    assert [(o['x'], int(o['labels'])) for o in changed] == [(1, 2), (2, 0)]
    for wrong in loaded(), iter([]):
        with pytest.raises(TypeError, match='expected a tuple'): apply_changes(wrong, file)

def test_changes_of_other_data_are_refused(tmp_path):
    learn = learner()
    learn.fit(1)
    file = tmp_path/'changes.csv'
    learn.data_map.review(2, file=file).mark(5, label=1)
    x, y = data()
    with pytest.raises(ValueError, match='other training data'): apply_changes((x, y.roll(1) + 5), file)
    with pytest.raises(ValueError, match='other training data'): apply_changes((x[:4], y[:4]), file)
    file.write_text('index,action,label,was\n5,drop,,0\n')
    with pytest.raises(ValueError, match='line 2'): apply_changes((x, y), file)
    with pytest.raises(FileNotFoundError): apply_changes((x, y), tmp_path/'none.csv')

def test_split_table_and_images_apply_changes(tmp_path):
    from PIL import Image
    import pandas as pd
    file = tmp_path/'changes.csv'
    file.write_text('index,action,label,was\n0,leave out,,\n2,label,1,\n')
    x, y = torch.arange(10.), torch.zeros(10).long()
    (a, b), (c, d) = split((x, y), .2)
    (new_a, new_b), (new_c, new_d) = split((x, y), .2, changes=file)
    assert torch.equal(new_a, a[1:]) and new_b.tolist() == [0, 1, 0, 0, 0, 0, 0] and torch.equal(new_c, c)
    other = tmp_path/'other.csv'
    rows = '0; leave out ;;;7', ';;;;', '2;label;2;0;7', ''         # as a program for tables writes it
    other.write_text('\r\n'.join(['index;action;label;was;of', *rows]))
    two = split((x, y), .2, changes=[file, other])[0]
    assert torch.equal(two[0], a[2:]) and two[1].tolist() == [1, 2, 0, 0, 0, 0]        # in their order
    with pytest.raises(ValueError, match='here has 6 samples'): split((x, y), .2, changes=[file, file, other])
    df = pd.DataFrame({'a': range(10), 'kind': [*'ab']*5})
    plain, table = Table(df, 'kind'), Table(df, 'kind', changes=file)
    assert table.train[1].tolist() == [*plain.train[1][1:2], 1, *plain.train[1][3:]]
    assert table.train[0].mean().abs() < 1e-6 and table.numbers != plain.numbers        # of the rows that stay
    for i in range(8):
        path = tmp_path/'pictures'/'uv'[i % 2]/f'{i}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (4, 4), (30*i,)*3).save(path)
    plain, images = Images(tmp_path/'pictures'), Images(tmp_path/'pictures', changes=file)
    assert len(images.train) == len(plain.train) - 1 and images.train[1][1] == 1
    assert torch.equal(images.train[1][0], plain.train[2][0]) and len(images.valid) == len(plain.valid)
    learn = Learner(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), images.train, images.valid, loss_fn=F.cross_entropy,
                    hooks=[TrackSamples()], display=False)
    learn.fit(1)
    assert dict(learn.data_map.show([1]).captions[0])['target'] == 'v'
