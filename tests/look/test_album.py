"The hook `Samples`: training does not notice it, and what it shows is small and harmless"
import pytest
from PIL import Image

from common import digest
from trainer_nb.all import *
from trainer_nb.draw import new_figure

def learner(*hooks):
    set_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(.3), nn.BatchNorm1d(8), nn.Linear(8, 4))
    x = torch.randn(40, 4)
    return Learner(model, (x, x), (x, x), bs=5, loss_fn=F.mse_loss, lr=.01, hooks=hooks, display=False,
                   device='cpu')

def draws(learn):
    "Noise, and what the model makes of it"
    return learn(torch.randn(3, 4)), torch.rand(2)

def test_training_and_resuming_are_those_without_it(tmp_path):
    def run(*hooks):
        learn = learner(*hooks, GradAccum(2))
        learn.fit(3)
        return digest(learn), torch.rand(3).tolist()
    samples = Samples(draws)
    assert run(samples) == run()
    assert [o['at'] for o in samples.moments] == ['before training', 'epoch 2']
    stopped = learner(Samples(draws), GradAccum(2))
    stopped.fit(3, hooks=[LambdaHook(after_step=lambda l: l.stop() if l.history.n_steps == 11 else None)])
    stopped.save(tmp_path/'a.pt')
    again = learner(Samples(draws), GradAccum(2))
    again.load(tmp_path/'a.pt')
    again.resume()
    assert again.get_hook(Samples).moments[-1] == samples.moments[-1]

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

def test_all_that_can_be_shown():
    fig, (ax,) = new_figure(3, 2)
    ax.plot([1, 2])
    shown = {'text': 'a <b>\nc', 'picture': Image.new('RGB', (500, 300)), 'figure': fig, 'image': torch.rand(3, 8, 8)*9,
             'curve': torch.rand(400), 'array': torch.rand(64).numpy(), 'number': 3.5}
    learn = learner(Samples(lambda learn: shown, n=9))
    learn.fit(1)
    html = learn.get_hook(Samples).html_below_plot()
    assert html.count('<img') == 2*5 and 'a &lt;b&gt;\nc' in html and '3.5' in html
    with pytest.raises(TypeError, match='returned None'): learner(Samples(lambda learn: None)).fit(1)
    with pytest.raises(ZeroDivisionError) as e: learner(Samples(lambda learn: 1/0)).fit(1)
    assert 'Samples' in ''.join(e.value.__notes__)

def test_it_stays_small_and_shows_no_markup():
    learn = learner(samples := Samples(lambda learn: torch.rand(6, 3, 300, 300)))
    learn.fit(5)
    assert len(samples.html_below_plot()) < 200_000 and 'before training' in samples.html_below_plot()
    learn = learner(samples := Samples(lambda learn: {'<b>': '<script>'}))
    learn.fit(1)
    assert not any(o in samples.html_below_plot() for o in ('<script', '<b>'))
