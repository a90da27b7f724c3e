"""What every wing uses: nested batches, text, errors. These names are for other wings"""
from .nested import (
    batch_code, batch_size, common_device, default_device, divide_batch, entries, has_accelerator,
    hashes, local, map_tensors, merge_batches, sample_counts, tensors_in, to_device
)
from .files import open_file, read_file, replacing, sync
from .rng import RNG_KINDS, check_seed, rng_state, set_rng_state, set_seed
from .text import (
    check_kinds, cut_name, did_you_mean, format_bytes, format_time, format_value, listed, printable, with_comments
)
from .memory import TensorMeter, is_oom, memory_in_use
from .errors import described, drop_locals, folded, library_versions, needed, note_place, owner, passed, show_error
from .torch_private import (
    BATCH_NORMS, CONVOLUTIONS, DROPOUTS, INSTANCE_NORMS, DispatchMode, backward, can_replace_calls,
    compile_errors, compile_modes, compile_options, each_, end_processes, fake_modes, forget_iterator, has_fakes,
    has_hooks, is_value_needed, is_wrapper, kept_iterator, mark_stepped, n_writes, norms, opt_step, own_call,
    replace_call, set_indices, state_of, state_versions, takes_found_inf, tracing_backward, workers_end
)
