"A learner belongs to the thread of its fit; other threads get an error that names `learn.request`"
import threading

from common import batches, make_learner, problem, same, weights
from trainer_nb.all import Checkpoint, LambdaHook, OneCycle

# these look, or are meant for other threads
FREE = {'describe_hooks', 'get_hook', 'provider', 'request', 'set_lr', 'stop', 'lrs', 'show'}

# parts of the loop itself
PARTS = {'train_step', 'eval_step', 'predict_step', 'record', 'do_step', 'do_backward', 'do_opt_step', 'do_zero_grad',
         'is_own', 'check_thread', 'cancel', 'clear_grads', 'explain', 'loader_for', 'move', 'step_of'}

def arguments(folder):
    "By verb, where it needs some"
    return {'fit': (1,), 'fit_one_cycle': (1,), 'predict': (problem()[0],), 'save': (folder/'saved.pt',),
            'load': (folder/'saved.pt',), 'add_hook': (OneCycle(),), 'added_hooks': (OneCycle(),),
            'remove_hook': ('Watch',), 'get_hook': ('Watch',), 'provider': ('display',), 'request': ('stop',),
            'set_lr': (.1,), 'export': (folder/'net.pt2',), 'launch': (lambda learn: None,),
            'plot_schedule': (1,), 'start': (folder/'run',)}

def error_in_a_thread(f, *args):
    errors = [None]
    def run():
        try:
            res = f(*args)
            if hasattr(res, '__enter__'): res.__enter__()
        except BaseException as e: errors.append(e)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors[-1]

def test_every_verb_from_another_thread(tmp_path):
    "Training is as if nobody had called"
    def make(): return make_learner(train_dl=batches(), valid_dl=batches(seed=2), seed=0)
    plain, learn, seen, args = make(), make(), {}, arguments(tmp_path)
    learn.model.load_state_dict(plain.model.state_dict())
    verbs = {o for o in dir(type(learn)) if o[0] != '_' and callable(getattr(type(learn), o))} - PARTS
    def ask(learn):
        if learn.state.optimizer_step != 3 or not learn.training: return
        for o in verbs: seen[o] = error_in_a_thread(getattr(learn, o), *args.get(o, ()))
        learn.requests.clear()
    make().save(tmp_path/'saved.pt')
    plain.fit(2)
    learn.fit(2, hooks=[LambdaHook(name='Watch', after_loss=ask), Checkpoint(tmp_path/'c')])
    refused = {k for k, e in seen.items() if isinstance(e, RuntimeError) and 'learn.request' in str(e)}
    assert len(refused) > 20 and refused == verbs - FREE, {k: seen[k] for k in refused ^ (verbs - FREE)}
    assert not any(isinstance(seen[k], RuntimeError) for k in FREE)
    assert same(weights(learn.model), weights(plain.model))
    learn.validate()        # the fit is over
