"Private names of torch: each has a public way, which gives the same numbers"
import re
from pathlib import Path
from types import ModuleType

import pytest, torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from common import batches, make_learner, same, weights
from trainer_nb.all import AMP, EMA, GradAccum, GradClip, GradNorm, NaNGuard
from trainer_nb.base import torch_private as private

root = Path(__file__).parents[2]

def test_private_names_are_used_on_tested_versions_alone(monkeypatch):
    "The pinned and the oldest version are tested: `make test-versions`"
    pin = re.search(r'^torch==(\d+\.\d+)', (root/'constraints.txt').read_text(), flags=re.M)[1]
    oldest = re.search(r'torch>=(\d+\.\d+)', (root/'settings.ini').read_text())[1]
    code = compile(Path(private.__file__).read_text(encoding='utf-8'), private.__file__, 'exec')
    for version, expected in (pin, True), (oldest, True), ('2.5.1', False), ('3.0.0', False), ('2.16.0.dev1', False):
        monkeypatch.setattr(torch, '__version__', torch.torch_version.TorchVersion(version))
        vars(again := ModuleType('again')).update(__name__=private.__name__)
        exec(code, vars(again))
        assert again.ONLY_PUBLIC is not expected, version

@pytest.mark.parametrize('optim, hooks', [
    ('SGD', lambda: [NaNGuard(), AMP()]),
    ('AdamW', lambda: [GradClip(.1), EMA(.9, warmup=False), GradAccum(2), GradNorm()])])
def test_a_fit_on_public_names_alone(optim, hooks, monkeypatch):
    def fitted():
        torch.manual_seed(0)
        learn = make_learner(None, batches(), batches(), optim=getattr(torch.optim, optim), hooks=hooks())
        learn.fit(2)
        return [*weights(learn.model), *(weights(learn.ema.model) if learn.ema else [])]
    expected = fitted()
    monkeypatch.setattr(private, 'ONLY_PUBLIC', True)
    assert same(fitted(), expected)

@pytest.mark.parametrize('is_enabled', [False, True])
def test_a_step_that_fails_leaves_the_gradient_mode(is_enabled):
    class Fails(SGD):
        def _init_group(self, *args):
            assert not torch.is_grad_enabled()
            raise ArithmeticError
    with torch.set_grad_enabled(is_enabled):
        with pytest.raises(ArithmeticError): private.opt_step(Fails([torch.ones(1, requires_grad=True)]))
        assert torch.is_grad_enabled() == is_enabled

def test_who_listens_is_called(monkeypatch):
    "Hooks of one optimizer or of all, the profiler, and a library that replaces `backward`"
    w, heard = torch.ones(1, requires_grad=True), []
    opt = SGD([w])
    registers = (opt.register_step_pre_hook, opt.register_step_post_hook, register_optimizer_step_pre_hook,
                 register_optimizer_step_post_hook)
    for register in registers:
        handle = register(lambda opt, *_: heard.append(register))
        private.opt_step(opt)
        handle.remove()
        private.opt_step(opt)
    assert heard == [*registers]
    with torch.profiler.profile() as prof: private.opt_step(opt)
    assert any(o.key == 'Optimizer.step#SGD.step' for o in prof.key_averages())
    own = Tensor.backward
    monkeypatch.setattr(Tensor, 'backward', lambda *args, **kwargs: heard.append(own) or own(*args, **kwargs))
    private.backward((w*2).sum())
    assert heard[-1] is own and w.grad.tolist() == [2]
