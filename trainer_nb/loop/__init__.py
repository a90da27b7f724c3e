"""The loop: hooks, metrics, history, `Fit` and `Learner`. These names are for other subpackages"""
from .hooks import (
    EVENTS, LIFECYCLE, STEPS, CancelEpoch, CancelFit, CancelStep, GoBack, Hook, HookOrderError,
    LambdaHook, MainProcessHook, as_hooks, is_custom, points
)
from .hook_table import HookTable
from .steps import (
    as_step, ignored_id, kept, loss_option, loss_weight, maker_of, needed_names,
    stack_scalars, unpack
)
from .metrics import Metric, accuracy, as_scores, check_monitored, is_skipped, rank
from .history import ENDS, History
from .optim import (
    ParamGroups, check_names, check_shared, check_untrained, found_names, gradients, group_rates, load_optimizer,
    lr_names, matching, named_parameters, named_parts, owners, parameters, refuse_closures, set_lr, set_option,
    total_norm, trained, trains_loss, unwrapped
)
from .world import World
from .plan import RESUMABLE, Plan, StepState, as_count, as_rate
from .fit import Fit, TrainingInterrupted
from .mistakes import check_first, refuse_others
from .snapshot import (
    fit_changes, get_modes, is_expanded, load_object_states, object_states, set_buffers, set_changes, set_modes,
    set_opt_modes, unsaved_buffers
)
from .predict import Joined
from .learner import Learner, class_names
from .sandbox import unchanged, without_hooks
