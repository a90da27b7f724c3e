"""What every subpackage uses: nested batches, text, errors. These names are for other subpackages"""
from .nested import (
    BATCH_NORMS, batch_size, common_device, copied, default_device, divide_batch, entries,
    has_accelerator, hashes, layers, local, map_tensors, merge_batches, open_nesting, plain_config, sample_counts,
    tensors_in, to_device
)
from .files import open_file, read_file, replacing
from .text import (
    RNG_KINDS, check_kinds, check_seed, cut_name, described, did_you_mean, drop_locals, folded, format_bytes,
    format_time, format_value, is_oom, library_versions, listed, memory_in_use, needed, printable, read_every,
    rng_state, set_rng_state, set_seed, show_error, show_versions, with_comments
)
from .torch_private import (
    backward, end_processes, forget_iterator, foreach, kept_iterator, n_writes, opt_step, set_indices, workers_end
)
