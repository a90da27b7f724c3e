"Models of PEFT: what a checkpoint of one holds, and the adapter files that PEFT itself reads"
import pytest, torch

from trainer_nb.all import Checkpoint, Learner, set_seed

pytestmark = pytest.mark.soak
peft = pytest.importorskip('peft', reason='needs peft')
transformers = pytest.importorskip('transformers', reason='needs transformers')
IDS = torch.randint(100, (32, 12), generator=torch.Generator().manual_seed(0))
BATCHES = [{'input_ids': o, 'labels': o} for o in IDS.split(8)]

@pytest.fixture(scope='module')
def base(tmp_path_factory):
    "A folder as one that is downloaded"
    set_seed(0)
    config = transformers.LlamaConfig(vocab_size=100, hidden_size=512, intermediate_size=1024, num_hidden_layers=2,
                                      num_attention_heads=4, tie_word_embeddings=True)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path_factory.getbasetemp()/'base')
    return tmp_path_factory.getbasetemp()/'base'

def load(base): return transformers.AutoModelForCausalLM.from_pretrained(base)

def adapted(base, *hooks, seed=0):
    set_seed(seed)
    config = peft.LoraConfig(r=1, target_modules=['q_proj', 'v_proj'], lora_dropout=.1, task_type='CAUSAL_LM')
    return Learner(peft.get_peft_model(load(base), config), BATCHES, BATCHES, lr=.01, hooks=hooks, seed=1,
                   display=False, device='cpu')

def size(folder): return max(o.stat().st_size for o in folder.iterdir())

def test_a_checkpoint_of_an_adapter_is_small_and_resumes_bit_for_bit(base, tmp_path):
    whole = adapted(base, Checkpoint(tmp_path/'all'))
    whole.fit(3)
    adapted(base, Checkpoint(tmp_path/'some', what='trainable')).fit(2)
    assert size(tmp_path/'some') < .02*size(tmp_path/'all')
    again = adapted(base, Checkpoint(tmp_path/'some', what='trainable'), seed=2)
    again.fit(3, resume=True)
    a, b = again.model.state_dict(), whole.model.state_dict()
    assert again.history.steps == whole.history.steps
    assert a.keys() == b.keys() and all(map(torch.equal, a.values(), b.values()))

def test_peft_reads_the_adapter_files(base, tmp_path):
    learn = adapted(base, Checkpoint(tmp_path/'run', what='trainable'))
    learn.fit(2)
    learn.load_best()
    learn.model.save_pretrained(tmp_path/'adapter')
    there = Learner(peft.PeftModel.from_pretrained(load(base), tmp_path/'adapter'), display=False, device='cpu')
    a, b = (o.predict({'input_ids': IDS})['logits'] for o in (learn, there))
    assert torch.equal(a, b) and not torch.equal(a, load(base)(IDS).logits)
    files = {o.name: o.stat().st_size for o in (tmp_path/'adapter').iterdir()}
    assert 'adapter_config.json' in files and files['adapter_model.safetensors'] < .02*size(base)

def test_a_checkpoint_refuses_another_base(base, tmp_path):
    adapted(base, Checkpoint(tmp_path, what='trainable')).fit(1)
    other = adapted(base, seed=3)
    with torch.no_grad(): other.model.get_input_embeddings().weight[0, 0] += 1
    before = other.predict({'input_ids': IDS})['logits']
    for load_it in other.load, other.load_best:
        with pytest.raises(ValueError, match='weights that were frozen differ in this model, such as .*embed_tokens'):
            load_it(tmp_path)
    assert torch.equal(other.predict({'input_ids': IDS})['logits'], before)
