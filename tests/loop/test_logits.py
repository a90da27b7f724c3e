"Models whose output has `logits`: metrics, results, confusion and report without a step, and targets that do not count"
import pytest
from trainer_nb.all import *

transformers = pytest.importorskip('transformers')
SMALL = dict(vocab_size=40, num_labels=3)
BERT = transformers.BertConfig(**SMALL, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                               intermediate_size=16)
GPT2 = transformers.GPT2Config(**SMALL, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1, pad_token_id=0)

def texts(targets):
    "Batches of texts of several lengths"
    for t in 5, 9, 7:
        ids = torch.randint(2, 40, (4, t))
        labels = ids.clone() if targets == 'next' else torch.randint(3, (4, t) if targets == 'tokens' else (4,))
        if labels.ndim > 1: labels[:, -2:] = -100
        yield {'input_ids': ids, 'attention_mask': torch.ones_like(ids), 'labels': labels}

def by_hand(learn, shift):
    "Share of labels that are predicted, as in the model cards, and their number"
    right = n = 0
    learn.model.eval()
    for b in learn.valid_dl:
        with torch.no_grad(): ids, labels = learn.model(**b).logits.argmax(-1), b['labels']
        if shift: ids, labels = ids[:, :-1], labels[:, 1:]
        counted = labels != -100
        right, n = right + (ids == labels)[counted].sum().item(), n + counted.sum().item()
    return right/n, n

@pytest.mark.parametrize('targets, make', [
    ('texts', lambda: transformers.BertForSequenceClassification(BERT)),
    ('tokens', lambda: transformers.BertForTokenClassification(BERT)),
    ('next', lambda: transformers.GPT2LMHeadModel(GPT2))])
def test_metrics_and_results(targets, make):
    batches = [*texts(targets)]
    learn = Learner(make(), batches, batches, lr=.01, metrics=accuracy, display=False, device='cpu')
    learn.fit(1)
    want, n = by_hand(learn, targets == 'next')
    assert learn.history.epoch_rows[-1]['valid_accuracy'] == pytest.approx(want)
    results = learn.results(classes=None if targets == 'next' else ['a', 'b', 'c'])
    c = results.confusion()
    assert c.counts.sum() == n and c.counts.diagonal().sum()/n == pytest.approx(want)
    assert f'{want:.1%}' in repr(results.report())
    shown = repr(results.show(2))
    assert 'predicted' in shown and 'tensor' not in shown
