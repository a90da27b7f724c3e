"""The loop: hooks, metrics, history, `Fit` and `Learner`. These names are for other wings"""
from .hooks import (
    EVENTS, LIFECYCLE, STEPS, CancelEpoch, CancelFit, CancelStep, GoBack, Hook,
    LambdaHook, MainProcessHook, points
)
from .hook_table import HookOrderError, HookTable, as_hooks, as_markdown
from .averages import stack_scalars
from .metrics import (
    Metric, accuracy, as_metrics, as_mode, as_scores, check_monitored, good_values, is_better, is_skipped, rank
)
from .plot import Plot
from .reading import flags_of
from .history import HISTORY_KINDS, History
from .param_groups import ParamGroups, found_names, matching, named_parameters
from .optim import (
    check_names, gradients, group_rates, load_optimizer, lr_names, owners, parameters,
    refuse_closures, set_lr, set_option, total_norm, trained, trains_loss
)
from .steps import (
    as_step, ignored_id, is_summed, loss_option, loss_weight, maker_of, needed_names
)
from .interrupts import TrainingInterrupted
from .world import World
from .outputs import Joined, sizes_of
from .plan import RESUMABLE, Plan, StepState, as_count, as_rate, fit_rates
from .fit import FIT_KINDS, Fit, load_rank_state, rank_state
from .mistakes import check_first, inputs_and_target
from .snapshot import (
    get_modes, is_expanded, load_object_states, object_states, set_buffers, set_modes, set_opt_modes,
    unsaved_buffers
)
from .parts import class_names, move
from .learner import Learner
from .sandbox import unchanged, without_hooks
