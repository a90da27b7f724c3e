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

class Fails(SGD):
    "It fails the third time, and records the gradient mode"
    modes = ()
    def _init_group(self, *args):
        self.modes = *self.modes, torch.is_grad_enabled()
        if len(self.modes) == 3: raise ArithmeticError
        return super()._init_group(*args)

@pytest.mark.skipif(private.ONLY_PUBLIC, reason='no test has seen this version of torch')
def test_a_step_without_the_wrapper_leaves_what_the_whole_step_leaves():
    "A version of torch may use private names if this holds"
    def left_by(step):
        p, seen = torch.arange(1., 4, requires_grad=True), []
        opt = Fails([p], momentum=.9)
        assert Fails.step.__code__ is private._WRAPPER
        for i in range(3):
            p.grad = torch.full_like(p, .3 + i)
            with torch.set_grad_enabled(i != 1):
                try: step(opt)
                except ArithmeticError: seen.append('failed')
                seen.append(torch.is_grad_enabled())
        return p.tolist(), [[v.tolist() for v in o.values()] for o in opt.state.values()], opt.modes, seen
    assert left_by(private.opt_step) == left_by(lambda opt: opt.step())

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
