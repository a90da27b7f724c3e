"What a user writes, with every public verb and most public names, and some mistakes, which `mypy --strict` finds"
from collections.abc import Iterator
from typing import Any

from trainer_nb.all import *


class Note(Hook):
    "Note the loss of each batch"
    runs_after = 'GradClip'     # type: ignore[assignment]      # until `Hook` annotates it

    def __init__(self) -> None: self.losses: list[torch.Tensor] = []

    def after_step(self, learn: Learner) -> None:
        self.losses.append(learn.loss.detach())
        learn.record('norm', 1., mean=True)
        if learn.state.epoch > 3: raise CancelEpoch

    def do_opt_step(self, learn: Learner, nxt: Any) -> Any: return nxt()

def step(batch: Any, learn: Learner) -> Iterator[tuple[str, torch.Tensor]]:
    yield 'd', learn.model(batch[0]).mean()

def main(folder: str) -> History:
    set_seed(0)
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hooks = [Note(), GradAccum(2), GradClip(1.), GradNorm(), NaNGuard(), EMA(.9), EarlyStopping(patience=2),
             Freeze('0'), Checkpoint(folder), CSVLogger(folder + '/log.csv'), JSONLLogger(folder + '/log.jsonl'),
             Profile(), OneCycle()]
    learn = Learner(model, (x, y), (x, y), loss_fn=F.cross_entropy, optim=torch.optim.SGD, lr=.1, hooks=hooks,
                    metrics=[accuracy, Metric(accuracy, name='acc')], bs=16, seed=1, config={'note': 'typed'})
    curve = learn.lr_find()
    print(curve, learn.describe_hooks(), learn.position)
    history = learn.fit(2, valid_every=3, valid_first=True, lr=.05, on_interrupt='return')
    learn.fit(max_steps=3, resume=folder)
    learn.resume()
    learn.fit_one_cycle(1, .1)
    learn.plot_schedule(2)
    values = learn.validate()
    print(learn.show_batch(4, valid=True, classes=['a', 'b', 'c']).rows)
    preds, targs = learn.predict((x, y), with_targs=True)
    print(learn.summary(depth=2).flops)
    results = learn.results(keep=lambda p: p.float())
    print(results.top_losses(3), results.show(4), results.confusion().most_confused(), results.report().scores)
    learn.save(folder + '/state.pt')
    learn.load(folder + '/state.pt')
    learn.export(folder)
    load_model(folder, model)
    learn.request('stop')
    learn.stop()
    learn.show()
    learn.history.plot()
    learn.launch(2, 1)
    learn.opt = torch.optim.Adam(model.parameters())
    learn.add_hook(LambdaHook(after_epoch=print))
    learn.remove_hook('LambdaHook')
    learn.get_hook(EMA, None)
    learn.metrics, learn.train_dl = [accuracy], DataLoader(TensorDataset(x, y), 8)
    others = [AMP(), SWA(), Accelerate(cpu=True), Compile(), Controls(), Display(), FreezeBN(), WarmupCosine(),
              TensorBoardLogger(folder), Schedule(warmup(.1, cosine(1., 0.))),
              Schedule(combine([.3, .7], [linear(0., 1.), cosine(1., 0.)])),
              LRScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1))]
    loader = Loaders({'a': TensorLoader(x, y, bs=8, shuffle=True), 'b': SeededLoader(TensorDataset(x), 4)})
    for batch in loader: print(batch_size(to_device(batch, 'cpu')), preds, targs, values, others)
    show_error()
    return history

def mistakes(learn: Learner) -> None:
    "Each is found: an `ignore` without an error would be one"
    learn.fit(epochs=2)                                     # type: ignore[arg-type]
    learn.lrfind()                                          # type: ignore[attr-defined]
    print(learn.state.epochs)                               # type: ignore[attr-defined]
    Learner(nn.Linear(4, 3), callbacks=[])                  # type: ignore[arg-type]
