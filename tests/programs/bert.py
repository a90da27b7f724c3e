"A model of transformers, made from its config, in the program of `encoder.py`"
from functools import partial

from transformers import BertConfig, BertForSequenceClassification

from programs import encoder
from programs.encoder import N_EPOCHS      # noqa: F401

def bert():
    config = BertConfig(vocab_size=20, hidden_size=12, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=24, max_position_embeddings=8, num_labels=3)
    return BertForSequenceClassification(config)

plain, learner = partial(encoder.plain, bert), partial(encoder.learner, bert)
