"""What every wing uses: nested batches, text, errors. These names are for other wings"""
from .nested import (
    batch_code, batch_size, common_device, default_device, divide_batch, entries, has_accelerator,
    hashes, local, map_tensors, merge_batches, open_nesting, sample_counts, tensors_in, to_device
)
from .files import open_file, read_file, replacing
from .rng import RNG_KINDS, check_seed, rng_state, set_rng_state, set_seed
from .text import (
    check_kinds, cut_name, did_you_mean, format_bytes, format_time, format_value, listed, printable, with_comments
)
from .errors import (
    described, drop_locals, folded, is_oom, library_versions, memory_in_use, needed, show_error
)
from .torch_private import (
    BATCH_NORMS, CONVOLUTIONS, DROPOUTS, INSTANCE_NORMS, backward, can_replace_calls,
    compile_options, each_, end_processes, forget_iterator, is_wrapper, kept_iterator, mark_stepped, n_writes, norms,
    opt_step, own_call, replace_call, set_indices, state_of, state_versions, takes_found_inf, workers_end
)
