"Every claim of the four documents has a test that shows it, and a page that explains it where it is different here"
import ast, json
from functools import cache
from pathlib import Path

import pytest

from common import read_cells

tests = Path(__file__).parents[1]
nbs = tests.parent/'nbs'

KERAS, TOOLS, ARTICLE, CUSTOM = DOCUMENTS = (
    'https://keras.io/examples/keras_recipes/trainer_pattern/', 'https://ssslakter.github.io/trainer-tools/reference/trainer/',
    'https://theaisummer.com/tensorflow-training-loop/',
    'https://www.application-architect.com/posts/how-to-use-custom-training-loops-in-tensorflow/')

# shorthands of files in `tests`, and pages in `nbs`
API, DOCS, LOOK, SHOW, READERS, PROGRAMS = (f'documents/test_documents{o}.py' for o in (
    '_api', '', '_look', '_show', '_readers', '_programs'))
TRACE, METRICS, SAVE = 'loop/test_hooks_trace.py', 'loop/test_metrics.py', 'save/test_checkpoint.py'
FROM_KERAS, FROM_TOOLS, FROM_LOOP = (f'howto/{o}.ipynb' for o in (
    '09_from_keras', '15_from_trainer_tools', '06_from_a_raw_loop'))

CLAIMS = {      # document → (claim, file and test that shows it, page and words on it where it is different here)
    KERAS: [     # one step for several models
        ('a trainer class is shared by two models', PROGRAMS, 'keras_two_models_share_a_trainer'),
        ('`train_step` is overridden', PROGRAMS, 'keras_two_models_share_a_trainer'),
        ('`test_step` is overridden', READERS, 'a_name_from_elsewhere', FROM_KERAS, 'eval_step'),
        ('the loss is a function of one\'s own', DOCS, 'numbers_that_a_step_returns_are_columns'),
        ('`metrics` is a property', READERS, 'a_name_from_elsewhere', FROM_KERAS, 'metrics=mae'),
        ('metrics begin anew in each epoch', METRICS, 'state_of_metric_objects_never_leaks'),
        ('a step returns running values of its metrics', READERS, 'a_running_value_of_a_step_is_no_mean',
         FROM_KERAS, 'update'),
        ('dropout is on in training only', PROGRAMS, 'keras_two_models_share_a_trainer'),
        ('`call` is that of the wrapped model', API, 'a_call_evaluates_the_model'),
        ('sequential and functional models alike', 'loop/test_equivalence.py',
         'mapping_batches_and_a_model_with_its_own_loss'),
        ('`compile(optimizer=...)`', PROGRAMS, 'keras_the_first_thing_that_is_typed',
         FROM_KERAS, 'arguments of `Learner`'),
        ('`SGD()` has a rate', READERS, 'the_first_line_names_a_rate_that_is_a_default', FROM_KERAS, 'lr'),
        ('`fit(x, y, epochs, batch_size, validation_data)`', API, 'a_call_of_fit_from_elsewhere',
         FROM_KERAS, 'raises an error that shows the same call'),
        ('the two trainers share no state', METRICS, 'state_of_metric_objects_never_leaks'),
        ('accuracies after five epochs', LOOK, 'headline_figures_stand_beside_ours',
         'tutorials/01_trainer_pattern.ipynb', '0.9265'),
        ('`history[\'loss\']`', READERS, 'a_name_from_elsewhere', FROM_KERAS, 'learn.history.epochs'),
        ('images are float64 arrays, labels uint8', READERS, 'labels_of_smaller_integers_are_int64'),
        ('a step may be as large as that of a GAN', PROGRAMS, 'custom_loops_a_gan_with_clipping'),
    ],
    TOOLS: [     # the API of trainer_tools
        ('`Trainer(model, train_step, train_dl, ...)`', READERS, 'a_name_from_elsewhere', FROM_TOOLS, 'train_step=…'),
        ('`train_step(batch, trainer)` returns a dict with the loss', PROGRAMS, 'trainer_tools_a_trainer_with_hooks'),
        ('`eval_step`, by default the same', DOCS, 'a_loss_that_is_a_number'),
        ('`optim` is an optimizer', 'loop/test_equivalence.py', 'a_class_is_made_as_in_a_plain_loop'),
        ('`epochs` of the trainer', 'loop/test_mistakes.py', 'a_rate_and_a_number_of_epochs_are_no_attributes',
         FROM_TOOLS, 'Epochs belong to `fit(n)`'),
        ('`hooks` is a list, or one hook', PROGRAMS, 'custom_loops_a_gan_with_clipping'),
        ('`config` reaches what is logged', API, 'the_config_reaches_exports_and_runs'),
        ('events come in a fixed order', TRACE, 'trace_equals_table'),
        ('each event guarantees attributes', TRACE, 'what_is_there_at_each_event'),
        ('`after_pred` and `after_loss`, for older hooks only', TRACE, 'trace_equals_table',
         FROM_TOOLS, 'Each event is fired'),
        ('`after_cancel` on an interrupt, which is raised again', 'loop/test_interrupt.py',
         'interrupt_raises_and_says_where'),
        ('`after_fit` is called after all else', TRACE, 'after_fit_is_called_for_all_hooks_after_an_error_in_one',
         FROM_TOOLS, 'comes last here after an error, too'),
        ('names of events of older releases', API, 'events_of_other_trainers', FROM_TOOLS, 'begin_fit'),
        ('`ord` says which hook is first', 'features/test_optimize.py', 'all_orders_of_registration',
         FROM_TOOLS, 'The first hook is the outermost wrapper'),
        ('a hook replaces a step of the trainer', READERS, 'a_step_is_not_assigned',
         FROM_TOOLS, 'they do not replace it'),
        ('a second `fit` acts like the first', PROGRAMS, 'trainer_tools_a_hook_acts_in_each_fit'),
        ('a hook is any class with these methods', READERS, 'a_name_from_elsewhere', FROM_TOOLS, 'BaseHook'),
        ('`MainProcessHook`, `LambdaHook`', TRACE, 'trace_equals_table'),
        ('`describe_hooks()` lists them by event', API, 'the_whole_lifecycle'),
        ('`get_hook(cls, default)`', PROGRAMS, 'trainer_tools_a_trainer_with_hooks'),
        ('`step_state` counts epochs, steps and samples', PROGRAMS, 'trainer_tools_a_trainer_with_hooks'),
        ('`store` and `get` share values of hooks', DOCS, 'a_dict_of_ones_own_survives_resume',
         FROM_TOOLS, 'A hook keeps its state in its attributes'),
        ('`accelerator`, `is_distributed`', READERS, 'a_name_from_elsewhere',
         FROM_TOOLS, 'learn.state.num_processes > 1'),
        ('`start_epoch`, `resume_path`', READERS, 'a_name_from_elsewhere', FROM_TOOLS, 'fit(n, resume=True)'),
        ('mixed precision, with a scaler', 'features/test_optimize.py', 'each_optimizer_has_its_scale'),
        ('accumulation over batches', 'features/test_accumulation.py', 'equals_the_big_batch'),
        ('an average of the weights', 'features/test_average.py',
         'an_average_is_of_the_model_that_was_loaded_with_it'),
        ('schedulers of torch', 'features/test_schedule.py', 'torchs_schedulers_as_in_a_loop_by_hand'),
        ('checkpoints every so many steps', SAVE, 'how_often_it_saves_and_what_it_keeps'),
    ],
    ARTICLE: [     # a trainer class for production
        ('a class with model, data, loss, optimizer, metric and epochs', PROGRAMS,
         'production_article_a_trainer_class'),
        ('settings are in a config', API, 'the_config_reaches_exports_and_runs'),
        ('forward, loss, gradients, update', 'loop/test_random_fits.py', 'random_fits_equal_plain_loops'),
        ('the loss is logged at each step', PROGRAMS, 'production_article_a_trainer_class'),
        ('or every so many steps', SHOW, 'a_log_counts_steps_of_the_optimizer_and_epochs'),
        ('values so far are printed in the loop', DOCS, 'a_hook_prints_means_so_far'),
        ('logs are those of Python\'s `logging`', SHOW, 'the_same_lines_go_to_logging'),
        ('the epoch\'s accuracy is logged', SHOW, 'the_same_lines_go_to_logging'),
        ('the metric is reset after an epoch', METRICS, 'state_of_metric_objects_never_leaks'),
        ('a checkpoint holds model and optimizer', SAVE, 'stopped_anywhere_and_resumed_in_a_new_process'),
        ('the last three are kept', SAVE, 'how_often_it_saves_and_what_it_keeps'),
        ('"Saved checkpoint: ..." is logged', SHOW, 'each_saved_checkpoint_is_a_line_of_a_log'),
        ('a run that was killed is continued', SAVE, 'killed_while_saving'),
        ('loss and accuracy in TensorBoard', 'show/test_loggers.py',
         'tensorboard_has_graph_and_settings_and_changes_nothing'),
        ('graph and trace in TensorBoard', 'features/test_profile.py', 'the_trace'),
        ('the model is exported in the end', PROGRAMS, 'production_article_a_trainer_class'),
        ('masks of images are predicted and shown', LOOK, 'binary_masks'),
        ('one can read how it is built', 'test_docs.py', 'reference_pages_show_the_exported_source'),
    ],
    CUSTOM: [     # custom loops
        ('full control of the step', 'loop/test_hook_values.py', 'a_method_gets_the_loss_if_it_names_it'),
        ('actor and critic', 'loop/test_programs.py', 'weights_are_those_of_the_plain_loop'),
        ('metrics are updated by batch and reset by epoch', METRICS, 'state_of_metric_objects_never_leaks'),
        ('losses of one\'s own are added up', DOCS, 'numbers_that_a_step_returns_are_columns'),
        ('validation without gradients', 'test_gradients_in_validation.py',
         'a_step_that_needs_gradients_is_told_that_validation_has_none'),
        ('a compiled step', 'features/test_compile.py', 'equals_the_plain_step'),
        ('it is 10 to 20 times as fast', LOOK, 'headline_figures_stand_beside_ours',
         'tutorials/06_make_it_fast.ipynb', 'pays'),
        ('a GAN: two networks with an optimizer each', PROGRAMS, 'custom_loops_a_gan_with_clipping'),
        ('clipping by the norm of each tensor', API, 'norm_per_tensor_equals_a_plain_loop'),
        ('clipping by value and by global norm', PROGRAMS, 'custom_loops_a_gan_with_clipping'),
        ('rates by step, with a warm-up', PROGRAMS, 'custom_loops_a_schedule_by_step'),
        ('several devices', PROGRAMS, 'custom_loops_distributed_and_stopped_early',
         'tutorials/08_more_than_one_process.ipynb', 'launch'),
        ('the loss is that of the global batch', 'parallel/test_distributed.py', 'equals_one_process'),
        ('`max_to_keep`', READERS, 'a_name_from_elsewhere', 'save/03_checkpoint.ipynb', 'keep'),
        ('`save_best_only`', SAVE, 'how_often_it_saves_and_what_it_keeps', 'save/03_checkpoint.ipynb',
         'best_only=True'),
        ('early stopping with patience', READERS, 'early_stopping_says_why'),
        ('`restore_best_weights`', READERS, 'a_name_from_elsewhere', FROM_KERAS, 'restore_best_weights'),
        ('int32 labels', READERS, 'labels_of_smaller_integers_are_int64'),
        ('`prefetch`', 'data/test_loaders.py', 'the_status_says_that_the_loop_waits', FROM_LOOP, 'prefetch'),
        ('a gradient that is not finite is found', 'features/test_optimize.py', 'the_guard_keeps_the_last_good_step'),
        ('a bar over a loop by hand', SHOW, 'progress_shows_a_loop_of_your_own'),
    ],
}

@cache
def names_in(file): return {o.name for o in ast.parse((tests/file).read_text()).body if isinstance(o, ast.FunctionDef)}

def words_of(page): return ''.join(source + json.dumps(outputs) for source, outputs, _ in read_cells(nbs/page))

def test_all_claims_are_here():
    assert [len({claim for claim, *_ in CLAIMS[o]}) for o in DOCUMENTS] == [18, 29, 18, 21]

@pytest.mark.parametrize('document', DOCUMENTS)
def test_none_is_silent(document):
    "The test is there, and the page has the words"
    assert not [(claim, test) for claim, file, test, *_ in CLAIMS[document] if f'test_{test}' not in names_in(file)]
    pages = [(claim, *page) for claim, _, _, *page in CLAIMS[document] if page]
    assert not [(claim, page) for claim, page, words in pages if words not in words_of(page)]

def test_readers_are_led_to_the_answers():
    "'Is it for you?' names each document, and links the pages"
    text = words_of('start/03_is_it_for_you.ipynb')
    assert not [o for o in DOCUMENTS if o not in text]
    assert not [o[3] for claims in CLAIMS.values() for o in claims if o[3:] and f'../{o[3]}' not in text]
