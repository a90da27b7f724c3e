"Private names of torch: each has a public way, which gives the same numbers, and only one module knows them"
import ast, re
from pathlib import Path
from types import ModuleType

import pytest, torch
from torch import Tensor
from torch.optim import SGD, Optimizer
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
    ('LBFGS', list), ('SGD', lambda: [NaNGuard(), AMP()]),
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

class Bare(Optimizer):
    "An optimizer whose step has only the outer wrapper; it records the gradient mode"
    def __init__(self, params):
        super().__init__(params, {'lr': .1})
        self.modes = []
    def step(self, closure=None):
        self.modes.append(torch.is_grad_enabled())
        for p in self.param_groups[0]['params']: p.data.sub_(p.grad, alpha=.1)

class Both(SGD):
    "An optimizer whose step has both wrappers, and fails the third time"
    modes = ()
    def _init_group(self, *args):
        self.modes = *self.modes, torch.is_grad_enabled()
        if len(self.modes) == 3: raise ArithmeticError
        return super()._init_group(*args)

@pytest.mark.skipif(private.ONLY_PUBLIC, reason='no test has seen this version of torch')
@pytest.mark.parametrize('cls, options', [(Bare, {}), (Both, {'momentum': .9}), (Both, {'differentiable': True})])
def test_a_step_without_the_wrapper_leaves_what_the_whole_step_leaves(cls, options):
    "A version of torch may use private names if this holds"
    def left_by(step):
        p, seen = torch.arange(1., 4, requires_grad=True), []
        opt = cls([p], **options)
        assert cls.step.__code__ is private._WRAPPER
        for i in range(3):
            p.grad = None if 'differentiable' in options else torch.full_like(p, .3 + i)
            with torch.set_grad_enabled(i != 1):
                try: step(opt)
                except ArithmeticError: seen.append('failed')
                seen.append(torch.is_grad_enabled())
        return p.tolist(), [[v.tolist() for v in o.values()] for o in opt.state.values()], [*opt.modes], seen
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

FOREIGN = {    # private names of other packages, and of Python
    '_replace', '_fields', '_asdict', '_exit', '_getframe', '_repr_png_', '_repr_html_', '_render_traceback_',
    '_allow_stdin', '_create_subshell', '_reply_subshell_for', '_reset_state', '_update_count', '_computed',
    '_no_split_modules', '_trial_id'}

def private_names(tree):
    "Private names that a module uses: attributes, also by `getattr`, and imports from torch; and those it defines"
    used, defined = set(), set()
    for o in ast.walk(tree):
        if isinstance(o, ast.Attribute):
            is_own = isinstance(o.ctx, ast.Store) and ast.unparse(o.value) == 'self'
            (defined if is_own else used).add(o.attr)
        elif isinstance(o, (ast.FunctionDef, ast.ClassDef)): defined.add(o.name)
        elif isinstance(o, ast.Name) and isinstance(o.ctx, ast.Store): defined.add(o.id)
        elif isinstance(o, ast.Call) and ast.unparse(o.func) in ('getattr', 'hasattr', 'setattr'):
            used |= {a.value for a in o.args[1:2] if isinstance(a, ast.Constant)}
        elif isinstance(o, ast.ImportFrom) and (o.module or '').startswith('torch'):
            used |= {part for a in o.names for part in f'{o.module}.{a.name}'.split('.')}
    return [{o for o in found if re.match('_[a-z]', str(o))} for found in (used, defined)]

def test_one_module_knows_private_names():
    "Of torch: an attribute with an underscore that no module here defines"
    used, defined = set(), set()
    for path in sorted((root/'trainer_nb').rglob('*.py')):
        if path.stem in ('_modidx', 'torch_private'): continue
        here, own = private_names(ast.parse(path.read_text(encoding='utf-8')))
        used |= {(path.stem, o) for o in here}
        defined |= own
    defined -= {'_iterator', '_opt_called', '_index_sampler', '_metadata'}
    assert not {o for o in used if o[1] not in defined | FOREIGN}
