"A sweep: its survivors are the trainings that they would be alone, and it continues wherever it was killed"
import json, os, random, signal, sys, threading, time, warnings
from pathlib import Path

import optuna, pytest, torch
from optuna.pruners import NopPruner, SuccessiveHalvingPruner

from common import Slow, batches, equal, make_learner, same, until, weights
from test_hostile_folders import Evil
from test_runs import python
from trainer_nb.all import Hook, Trials, compare, set_seed, sweep
from trainer_nb.base import rng_state
from trainer_nb.runs.engine import warm_starts
from trainer_nb.runs.run import begin
from trainer_nb.runs.trace import digest
from trainer_nb.runs.worker import torch_settings

N_EPOCHS = 2

def make(trial):
    lr = trial.suggest_float('lr', 1e-3, 1, log=True)
    return make_learner(valid_dl=batches(seed=2), optim=lambda p: torch.optim.SGD(p, lr))

def search(folder, n=2, make=make, **kwargs):
    return sweep(make, n, folder, **{'n_epochs': N_EPOCHS, 'pruner': NopPruner(), **kwargs})

def alone(lr):
    "The learner of a trial with this learning rate"
    return make(optuna.trial.FixedTrial({'lr': lr}))

class Facts(Hook):
    "Writes down what training could depend on, or a neighbour could have left behind"
    def __init__(self, path): self.path = path

    def before_fit(self, learn):
        handlers = [str(signal.getsignal(o)).split(' object')[0] for o in (signal.SIGINT, signal.SIGCHLD)]
        env = sorted(o for o in os.environ if o not in ('_', 'SHLVL'))
        facts = {'torch': torch_settings(), 'grad': torch.is_grad_enabled(), 'cwd': os.getcwd(), 'env': env,
                 'rng': digest(rng_state()), 'handlers': handlers, 'warnings': len(warnings.filters),
                 'hooks': len(torch.nn.modules.module._global_forward_hooks), 'fds': len(os.listdir('/proc/self/fd')),
                 'main': sys.modules['__main__'].__spec__.name, 'threads': len(threading.enumerate()),
                 'leads': os.getsid(0) == os.getpid(), 'input': sys.stdin.read()}
        Path(self.path).write_text(json.dumps(facts, default=str))

class Spoils(Hook):
    "Changes what it can in its process, and ends it or the training"
    def __init__(self, end): self.end = end

    def after_step(self, learn):
        os.environ['SPOILED'] = '1'
        os.chdir('/')
        warnings.simplefilter('ignore')
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.manual_seed(5)
        if self.end == 'died': os.kill(os.getpid(), signal.SIGKILL)
        if self.end == 'failed': raise ValueError('spoiled')
        learn.stop()

def test_a_warm_process_is_as_a_fresh_one(tmp_path):
    "Bit for bit, after trials that changed their process, crashed, failed, or were stopped"
    def trained(name):
        set_seed(3)
        begin(learn := alone(.1), 2, folder=tmp_path/name, hooks=[Facts(tmp_path/f'{name}.json')]).wait()
        return learn, json.loads((tmp_path/f'{name}.json').read_text())
    fresh, facts = trained('fresh')
    with warm_starts():
        for end in 'died', 'failed', 'stopped':
            set_seed(3)
            run = begin(alone(.1), 2, folder=tmp_path/end, hooks=[Spoils(end)])
            until(lambda: run.is_over)
            assert run.status == end
        warm, found = trained('warm')
    assert facts['leads'] and found == facts
    assert same(weights(warm.model), weights(fresh.model)) and warm.history.steps == fresh.history.steps

def check_alone(found):
    "Each trial that is done has the weights of the same training without a sweep"
    done = [o for o in found.trials if o['status'] == 'done']
    assert done
    for row in done:
        set_seed(0)
        losses = (expected := alone(row['lr'])).fit(N_EPOCHS).epochs['valid_loss']
        learn = found.run(row['run']).learner()
        assert same(weights(learn.model), weights(expected.model))
        assert learn.history.epochs['valid_loss'] == losses and row['valid_loss'] == min(losses)

def check_told(found, n):
    "Each run is told to Optuna, and nothing is left open"
    states = [o.state.name for o in found.study.trials]
    assert len(found) == n == len(list(found.folder.glob('trial-*'))) and not {'RUNNING', 'WAITING'} & {*states}
    assert states.count('COMPLETE') == sum(o['status'] == 'done' for o in found.trials)

def test_interrupted_and_called_again(tmp_path):
    def interrupted(trial):
        if trial.number: raise KeyboardInterrupt
        return make(trial)
    before = rng_state()
    with pytest.raises(KeyboardInterrupt): search(tmp_path/'a', make=interrupted, n_jobs=2)
    found = search(tmp_path/'a', n_jobs=2)
    assert equal(before, rng_state())
    check_told(found, 2)
    check_alone(found)
    assert found.best.path.name == found.trials[0]['run'] and found.study.best_value == found.trials[0]['valid_loss']
    assert len({o['lr'] for o in found.trials}) == 2      # the sampler does not repeat its first choice
    assert repr(Trials(tmp_path/'a')) == repr(found)
    for what in tmp_path/'a', f'{tmp_path}/a/*':        # compared by its trials: Optuna's journal beside them is no run
        rows = compare(what).values
        assert {o['run'] for o in rows} == {o['run'] for o in found.trials}
        assert {k for o in rows for k in o if '.' in k} == {'optimizer.lr'}
    with pytest.raises(FileNotFoundError, match='nothing to compare'): compare(tmp_path/'a'/'study.jsonl')

@pytest.mark.soak
def test_halving(tmp_path):
    pruner = SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    found = search(tmp_path/'a', 8, n_jobs=2, pruner=pruner, hooks=[Slow(.1)])
    check_told(found, 8)
    check_alone(found)
    assert 1 < sum(o['status'] == 'stopped' for o in found.trials) < 7

@pytest.mark.soak
def test_killed(tmp_path, n_kills=20):
    rand = random.Random(n_kills)
    for i in range(n_kills):
        folder = tmp_path/str(i)
        process = python('-c', f'import test_sweep; test_sweep.search({str(folder)!r}, 3)', cwd=tmp_path)
        time.sleep(4 + rand.uniform(0, 8))
        process.kill()
        process.communicate()
        found = search(folder, 3)
        check_told(found, 3)
        check_alone(found)

def test_a_trial_that_fails_leaves_the_others(tmp_path):
    "In `make`, also the first one, or later; and settings may have the names of columns"
    names = 'status', 'epochs', 'run', 'valid_loss'
    def failing(trial):
        for name in names: trial.suggest_categorical(name, ['x'])
        if trial.number == 0: return {}
        if trial.number == 2: raise optuna.TrialPruned
        learn = make(trial)
        if trial.number == 3: learn.metrics = [lambda pred, targ: 1/0]
        return learn
    with pytest.warns(UserWarning, match='trial 0.*expected a Learner') as warned:
        found = search(tmp_path/'a', 5, make=failing, n_epochs=1)
    assert warned[0].filename == __file__       # where `sweep` is called
    rows = {o['run']: o['status'] for o in found.trials}
    assert rows == {'trial-001': 'done', 'trial-003': 'failed', 'trial-004': 'done'}
    assert [o.state.name for o in found.study.trials] == ['FAIL', 'COMPLETE', 'PRUNED', 'FAIL', 'COMPLETE']
    assert 'division by zero' in found.run('trial-003').error
    assert all(o[f'setting {name}'] == 'x' for o in found.trials for name in names)

def test_bad_arguments(tmp_path):
    for change, error, words in [
            (dict(make=3), TypeError, 'make'), (dict(mode='lowest'), ValueError, 'mode'),
            (dict(n_trials=0), ValueError, 'n_trials'), (dict(n_epochs=0), ValueError, 'n_epochs')]:
        kwargs = {'make': make, 'n_trials': 1, 'folder': tmp_path/'a', 'n_epochs': 1, **change}
        with pytest.raises(error, match=words): sweep(**kwargs)
        assert not list(tmp_path.glob('a/trial-*'))

def test_looking_runs_nothing_and_stays_inside(tmp_path):
    (tmp_path/'a/trial-000').mkdir(parents=True)
    (tmp_path/'b').mkdir()
    for o in tmp_path/'a/trial-000', tmp_path/'b', tmp_path:
        (o/'run.json').write_text('{}')
        torch.save(Evil(tmp_path/'hit'), o/'program.pt')
    study = optuna.create_study(study_name='sweep', storage=optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path/'a/study.jsonl'))))
    for name in 'trial-000', '../b', '..', '<b>x</b>': study.ask().set_user_attr('run', name)
    found = Trials(tmp_path/'a')
    assert [o['run'] for o in found.trials] == ['trial-000'] and found.best is None and '<b>' not in found._repr_html_()
    assert not (tmp_path/'hit').exists()
    with pytest.raises(FileNotFoundError): Trials(tmp_path/'c')
