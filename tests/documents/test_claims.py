"Where this library differs from what the four documents claim, a page explains it, and 'Is it for you?' leads there"
import json
from pathlib import Path

import pytest

from common import read_cells

nbs = Path(__file__).parents[2]/'nbs'
DOCUMENTS = (
    'https://keras.io/examples/keras_recipes/trainer_pattern/',
    'https://ssslakter.github.io/trainer-tools/reference/trainer/',
    'https://theaisummer.com/tensorflow-training-loop/',
    'https://www.application-architect.com/posts/how-to-use-custom-training-loops-in-tensorflow/')

EXPLAINED = {       # page → names and words of the documents, or ours in their place
    'howto/09_from_keras': ['eval_step', 'metrics=mae', 'update', 'arguments of `Learner`', 'lr', 'same call',
                            'learn.history.epochs', 'restore_best_weights', '0.9265'],
    'tutorials/01_trainer_pattern': ['eval_step'],
    'howto/15_from_trainer_tools': [
        'train_step=…', 'Epochs belong to `fit(n)`', 'Each event is fired', 'after an error, too', 'begin_fit',
        'the outermost wrapper', 'do not replace it', 'BaseHook', 'A hook keeps its state', 'fit(n, resume=True)',
        'learn.state.num_processes > 1'],
    'tutorials/06_make_it_fast': ['pays'],
    'tutorials/08_more_than_one_process': ['launch'],
    'save/03_checkpoint': ['keep', 'best_only=True'],
    'howto/06_from_a_raw_loop': ['prefetch'],
}

def words_of(page):
    return ''.join(source + json.dumps(outputs) for source, outputs, _ in read_cells(nbs/f'{page}.ipynb'))

@pytest.mark.parametrize('page', EXPLAINED)
def test_a_page_explains_what_is_different_here(page):
    text = words_of(page)
    assert not [o for o in EXPLAINED[page] if o not in text]

def test_readers_are_led_to_the_answers():
    text = words_of('start/03_is_it_for_you')
    assert not [o for o in (*DOCUMENTS, *(f'../{page}.ipynb' for page in EXPLAINED)) if o not in text]
