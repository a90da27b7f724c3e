"A learner belongs to the thread of its fit; other threads get an error that names `learn.request`"
import threading

from common import batches, make_learner, problem, same, weights
from trainer_nb.all import Checkpoint, LambdaHook, OneCycle

def call(learn, name, folder):
    "Call a verb with arguments that are fine otherwise"
    x = problem()[0]
    args = {'fit': (1,), 'fit_one_cycle': (1,), 'predict': (x,), 'save': (folder/'saved.pt',),
            'load': (folder/'saved.pt',),
            'add_hook': (OneCycle(),), 'remove_hook': ('Watch',), 'get_hook': ('Watch',), 'provider': ('display',),
            'request': ('stop',), 'set_lr': (.1,),
            'rewind': (), 'export': (folder/'net.pt2',), 'launch': (lambda learn: None,),
            'added_hooks': (OneCycle(),), 'start': (folder/'run',)}
    kwargs = {'plot_schedule': dict(n_epochs=1, hooks=OneCycle()), 'find_batch_size': {}}
    res = getattr(learn, name)(*args.get(name, ()), **kwargs.get(name, {}))
    if name in ('dry_run', 'added_hooks'):
        with res: pass

# these look, or are meant for other threads
FREE = {'describe_hooks', 'get_hook', 'provider', 'request', 'set_lr', 'stop', 'lrs', 'show'}

# parts of the loop itself
PARTS = {'train_step', 'eval_step', 'predict_step', 'record', 'do_step', 'do_backward', 'do_opt_step', 'do_zero_grad',
         'is_own', 'check_thread', 'cancel', 'clear_grads', 'explain', 'loader_for', 'move', 'step_of'}

def verbs():
    learn = make_learner()
    found = {o for o in dir(type(learn)) if not o.startswith('_') and callable(getattr(type(learn), o))}
    found -= PARTS
    return sorted(found)

def in_a_thread(f):
    errors = []
    def run():
        try: f()
        except BaseException as e: errors.append(e)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors[0] if errors else None

def test_every_verb_from_another_thread(tmp_path):
    def make():
        watch = LambdaHook(name='Watch', after_step=lambda learn: None)
        hooks = [Checkpoint(tmp_path/'c'), watch]
        return make_learner(train_dl=batches(), valid_dl=batches(seed=2), seed=0, hooks=hooks)
    plain = make_learner(train_dl=batches(), valid_dl=batches(seed=2), seed=0)
    start, seen, names = weights(plain.model), {}, verbs()
    plain.fit(2)
    learn = make()
    for w, o in zip(learn.model.state_dict().values(), start): w.copy_(o)
    make().save(tmp_path/'saved.pt')
    def ask(learn):
        if learn.state.optimizer_step == 3 and learn.training and not seen:
            for name in names: seen[name] = in_a_thread(lambda: call(learn, name, tmp_path))
            learn.requests.clear()
    learn.fit(2, hooks=[LambdaHook(after_loss=ask)])
    refused = {k for k, e in seen.items() if isinstance(e, RuntimeError) and 'learn.request' in str(e)}
    assert refused == seen.keys() - FREE, {k: seen[k] for k in refused ^ (seen.keys() - FREE)}
    assert not any(isinstance(seen[k], RuntimeError) for k in FREE & seen.keys())
    assert same(weights(learn.model), weights(plain.model))
    learn.validate()        # the fit is over
