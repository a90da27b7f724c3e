"Checkpoints of models of PEFT, and the adapter files that PEFT itself reads"
import pytest, torch

from trainer_nb.all import Checkpoint, Learner, set_seed

pytestmark = pytest.mark.soak
peft = pytest.importorskip('peft', reason='needs peft')
transformers = pytest.importorskip('transformers', reason='needs transformers')
IDS = torch.randint(100, (32, 12), generator=torch.Generator().manual_seed(0))
BATCHES = [{'input_ids': o, 'labels': o} for o in IDS.split(8)]

def test_peft_reads_the_adapter_files(tmp_path):
    set_seed(0)
    config = transformers.LlamaConfig(vocab_size=100, hidden_size=512, intermediate_size=1024, num_hidden_layers=2,
                                      num_attention_heads=4, tie_word_embeddings=True)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path/'base')
    def load(): return transformers.AutoModelForCausalLM.from_pretrained(tmp_path/'base')
    def size(folder): return max(o.stat().st_size for o in folder.iterdir())
    config = peft.LoraConfig(r=1, target_modules=['q_proj', 'v_proj'], lora_dropout=.1, task_type='CAUSAL_LM')
    learn = Learner(peft.get_peft_model(load(), config), BATCHES, BATCHES, lr=.01, seed=1, display=False, device='cpu',
                    hooks=Checkpoint(tmp_path/'run', what='trainable'))
    learn.fit(2)
    learn.load_best()
    learn.model.save_pretrained(tmp_path/'adapter')
    there = Learner(peft.PeftModel.from_pretrained(load(), tmp_path/'adapter'), display=False, device='cpu')
    a, b = (o.predict({'input_ids': IDS})['logits'] for o in (learn, there))
    assert torch.equal(a, b) and not torch.equal(a, load()(IDS).logits)
    files = {o.name: o.stat().st_size for o in (tmp_path/'adapter').iterdir()}
    assert 'adapter_config.json' in files and files['adapter_model.safetensors'] < .02*size(tmp_path/'base')
