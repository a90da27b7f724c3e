"Tensors of a GPU beside those of the host: torch's fake tensors know their device, and refuse what a GPU would refuse"
import pytest, torch
from torch._subclasses import FakeTensorMode

from trainer_nb.base import common_device
from trainer_nb.loop.steps import stack_scalars
from trainer_nb.loop.optim import load_optimizer, total_norm


@pytest.fixture(autouse=True)
def _fake():
    with FakeTensorMode(allow_non_fake_inputs=True): yield

def far(*shape): return torch.ones(shape, device='cuda')

def test_scalars_meet_on_the_device():
    "What a host would read without waiting is not copied to it"
    assert common_device([1., torch.ones(1), far(1)]).type == 'cuda'
    assert common_device([1., torch.ones(1)]).type == 'cpu'
    for o in stack_scalars([.5, far()]), stack_scalars([torch.ones(1), far(1)]), total_norm([far(2), torch.ones(2)]):
        assert o.is_cuda

def test_an_optimizer_of_compiled_code_comes_to_the_host():
    "torch refuses `capturable` there"
    opt, there = (torch.optim.Adam([torch.zeros(2, requires_grad=True)], capturable=o) for o in (False, True))
    on_device = torch.optim.Adam([far(2).requires_grad_()])
    for o in opt, on_device: load_optimizer(o, there.state_dict())
    assert [o.param_groups[0]['capturable'] for o in (opt, on_device)] == [False, True]
