"The hook `Samples`: training does not notice it, it resumes, and what it shows is small and harmless"
import pytest
from PIL import Image

from common import digest
from trainer_nb.all import *
from trainer_nb.draw import new_figure
from trainer_nb.look.pictures import Drawing

def learner(*hooks):
    set_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(.3), nn.BatchNorm1d(8), nn.Linear(8, 4))
    x = torch.randn(40, 4)
    return Learner(model, (x, x), (x, x), bs=5, loss_fn=F.mse_loss, lr=.01, hooks=hooks, display=False,
                   device='cpu')

def draws(learn):
    "Noise, and what the model makes of it"
    return learn(torch.randn(3, 4)), torch.rand(2)

@pytest.mark.parametrize('every', ['epoch', 3])
def test_training_and_resuming_are_those_without_it(every, tmp_path):
    def run(*hooks):
        learn = learner(*hooks, GradAccum(2))
        learn.fit(3)
        return digest(learn), torch.rand(3).tolist()
    samples = Samples(draws, every)
    assert run(samples) == run()
    assert [o['at'] for o in samples.moments] == ['before training', *(
        [f'epoch {i}' for i in range(3)] if every == 'epoch' else ['step 6', 'step 9', 'step 12'])]
    stopped = learner(Samples(draws, every), GradAccum(2))
    stopped.fit(3, hooks=[LambdaHook(after_step=lambda l: l.stop() if l.history.n_steps == 11 else None)])
    stopped.save(tmp_path/'a.pt')
    again = learner(Samples(draws, every), GradAccum(2))
    again.load(tmp_path/'a.pt')
    assert again.get_hook(Samples).html_below_plot() == stopped.get_hook(Samples).html_below_plot() != ''
    again.resume()
    assert again.get_hook(Samples).moments == samples.moments

def test_the_average_draws_from_the_same_noise():
    seen = []
    def f(learn):
        assert not learn.model.training and not torch.is_grad_enabled()
        z = torch.randn(2, 4)
        seen.append((z, learn(z), learn.ema.average_of(learn)(z)))
        return 'text'
    learn = learner(Samples(f), EMA(.5))
    learn.fit(2)
    assert learn.model.training and len(seen) == 3
    for z, shown, average in seen: assert torch.equal(z, seen[0][0]) and torch.equal(shown, average)

def test_all_that_can_be_shown(tmp_path):
    fig, (ax,) = new_figure(3, 2)
    ax.plot([1, 2])
    shown = {'text': 'a <b>\nc', 'picture': Image.new('RGB', (500, 300)), 'figure': fig, 'image': torch.rand(3, 8, 8)*9,
             'sound': torch.rand(400), 'array': torch.rand(64).numpy(), 'number': 3.5}
    learn = learner(Samples(lambda learn: shown, n=9, folder=tmp_path/'pages', rate=8000))
    learn.fit(1)
    html = learn.get_hook(Samples).html_below_plot()
    assert html.count('<img') == 2*5 and 'a &lt;b&gt;\nc' in html and '3.5' in html and '<audio' not in html
    pages = sorted(o.read_text() for o in (tmp_path/'pages').iterdir())
    assert len(pages) == 2 and pages[0].count('<audio') == 2
    with pytest.raises(TypeError, match='returned None'): learner(Samples(lambda learn: None)).fit(1)
    with pytest.raises(ZeroDivisionError) as e: learner(Samples(lambda learn: 1/0)).fit(1)
    assert 'Samples' in ''.join(e.value.__notes__)

def test_it_stays_small_and_a_state_cannot_bring_markup():
    learn = learner(samples := Samples(lambda learn: torch.rand(6, 3, 300, 300)))
    learn.fit(5)
    assert len(samples.html_below_plot()) < 200_000 and 'before training' in samples.html_below_plot()
    moment = {'at': '<script>', 'note': '', 'drawn': {'<b>': {**vars(Drawing('<i>')), 'data': b'x'}}}
    samples.load_state_dict({'moments': [moment]})
    assert not any(o in samples.html_below_plot() for o in ('<script', '<b>', '<i>'))
    moment['drawn']['<b>']['kind'] = 'png" onload="'
    with pytest.raises(ValueError, match="expected 'png' or 'jpeg'"): samples.load_state_dict({'moments': [moment]})

@pytest.mark.soak
def test_a_background_run_keeps_pages_in_its_folder(tmp_path):
    run = learner(Samples(draws)).start(2, folder=tmp_path/'run')
    run.wait(120)
    assert len([*(tmp_path/'run'/'samples').iterdir()]) == 3
