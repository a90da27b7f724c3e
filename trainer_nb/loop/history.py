"""Values of every batch and epoch, as data, as a table and as a plot"""

import math, warnings
from array import array
from copy import deepcopy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, chain
from typing import Any

from ..base import check_kinds, format_time, listed
from ..draw import Plot, PlotData, current_cell, html_table, is_rate, marimo_outputs, marimo_view, show_bundle, text_table
from .columns import COLUMNS_KINDS, Columns
from .metrics import best_row

def by_column(rows: Sequence[Mapping]) -> dict[str, list]:
    "Convert rows to columns; nan where a row lacks a value"
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    last = [o for o in names if o.startswith('lr') or o == 'time_s']
    names = [o for o in names if o not in last] + last
    return {name: [row.get(name, math.nan) for row in rows] for name in names}

def format_cell(name: str, v: float, first_s: float) -> str:
    "Format a value of the epoch table; the first epoch's time, in seconds, chooses the unit of all"
    if name == 'epoch': return str(v)
    if name == 'time_s':
        if first_s >= 60: return format_time(v)
        n, unit, digits = (v, 's', 1) if first_s >= .1 else (1000*v, 'ms', 0)
        return f'{n:.{digits}f} {unit}' if n >= .95*10**-digits else f'{n:.1g} {unit}'     # not 0.0 s
    if is_rate(name): return f'{v:.3g}'
    if v and not .001 <= abs(v) < 1e7: return f'{v:.3e}'
    if .9999 < v < 1: v = .9999         # an accuracy of 1.0000 is one without a mistake
    digits = next((n for most, n in ((100, 4), (10_000, 2)) if not abs(v) >= most), 0)
    return f'{v + 0.:.{digits}f}'       # not -0.0000

def _picked(n, first, most, best):
    "Return the indices of the rows to show, with a text in place of those left out"
    if n - first <= most: return list(range(first, n))
    head = most//4
    kept = sorted({*range(first, first + head), *range(n - most + head + 1, n), *([] if best is None else [best])})
    res = []
    for before, i in zip([first - 1, *kept], kept):
        if i > before + 1: res.append(f'… {i - before - 1} more: learn.history.epochs')
        res.append(i)
    return res

_IMPORTANT = 'epoch', 'valid_loss', 'train_loss', 'valid_', 'time', 'train_', ''

def _cells(rows, first_s, returned, width):
    "Return the columns of the table, each a list of its heading and its cells, losses first"
    rest = [*returned][8:]      # of what steps return
    hidden = {*(p + o for p in ('train_', 'valid_') for o in rest), *list(filter(is_rate, rows[-1] if rows else ()))[4:]}
    columns = {name: ['time' if name == 'time_s' else name, *(format_cell(name, v, first_s) for v in values)]
               for name, values in by_column(rows).items() if name not in hidden}
    if rest: columns['+'] = [f'+{len(rest)} more', *['']*len(rows)]
    def is_loss(o): return 'loss' in o.split('_') and o[:3] != 'lr_'         # lr_loss_fn is a rate
    names = sorted(columns, key=lambda o: (o != 'epoch', not is_loss(o)))
    if width is not None:       # in characters: leave out the least important ones
        ranked = sorted(names, key=lambda o: next(i for i, start in enumerate(_IMPORTANT) if o.startswith(start)))
        ends = accumulate(max(5 if o in ('epoch', 'time_s') else 8, *map(len, columns[o])) + 2 for o in ranked)
        fitting = {o for o, end in zip(ranked, ends) if end <= width + 2}
        names = [o for o in names if o in fitting]
    return {o: columns[o] for o in names}

@dataclass
class Latest:
    "What is known of the latest fit, for the table and the picture"
    status: str = ''            # how it ended, in one line
    first: int = 0              # its first epoch, as a row
    kept: int | None = None     # row of the epoch whose weights were restored at its end
    monitor: tuple[str, str] = ('valid_loss', 'min')    # column that decides on the best epoch, and what is better
    shown_in: int | None = None     # the cell that already shows it: `learn.fit(3)` shows its table once

HISTORY_KINDS = {
    'columns': COLUMNS_KINDS, 'epoch_rows': [{str: object}], 'valid_rows': [{str: object}], 'ends': [int],
    'returned': [str], 'spikes': [{str: object}], 'flags': [[(int, str)]]}
_LISTS = 'epoch_rows', 'valid_rows', 'ends', 'flags', 'spikes'

class History:
    "Values of all fits by training batch, epoch and validation pass; a table in Jupyter, or text"
    def __init__(self):
        self.columns = Columns()                # by training batch
        self.epoch_rows: list[dict] = []
        self.valid_rows: list[dict] = []
        self.ends: list[int] = []               # number of batches at the end of each epoch
        self.flags: list[list] = []             # (batches so far, what happened then), see `flag`
        self.spikes: list[dict] = []    # batches with far too large losses or gradients, see `SpikeGuard`
        self.returned: dict[str, None] = {}     # numbers that steps return beside their losses
        self.latest = Latest()

    # written by the loop

    def add_valid(self, row: Mapping) -> None:
        "Record a validation pass: 'epoch', 'step', and `valid_*` → number"
        self.valid_rows.append({'batch': self.n_steps, **row})

    def add_epoch(self, row: dict) -> None:
        "Record an epoch; warns about a column's first nan"
        self.latest.kept = None
        bad = [k for k, v in row.items() if v != v and not any(o.get(k, 0) != o.get(k, 0) for o in self.epoch_rows)]
        self.epoch_rows.append(row)
        self.ends.append(self.n_steps)
        for name in bad:        # of the line that called `fit`
            warnings.warn(f'{name} is nan in epoch {row["epoch"]}', RuntimeWarning, stacklevel=5)

    def flag(self, what: str) -> None:
        "Note in a few words what was done after the latest batch, 'lr × 2 → 0.02'; the plot marks it"
        self.flags.append([self.n_steps, what])

    def state_dict(self) -> dict:
        "Return all values"
        lists = {k: deepcopy(getattr(self, k)) for k in _LISTS}
        return {**lists, 'columns': self.columns.state_dict(), 'returned': [*self.returned]}

    def load_state_dict(self, state: Mapping) -> None:
        "Replace all values by a state"
        check_kinds(state, HISTORY_KINDS, 'the history')
        self.columns.load_state_dict(state['columns'])
        for k in _LISTS: setattr(self, k, deepcopy(state[k]))
        self.returned, self.latest = dict.fromkeys(state['returned']), Latest(monitor=self.latest.monitor)

    # read by anybody

    @property
    def n_steps(self) -> int:
        "Number of training batches recorded"
        return self.columns.n

    def fetch(self,
        n: int = 0,                         # least length, filled with nan
        start: Callable = lambda name: 0,   # `f(name)` → index of the first value to return
        wait: bool = True,                  # for values that are still on a device
    ) -> dict[str, array]:                  # of double
        "Return the values by training batch; in a thread other than the fit's, the last may be missing"
        return {name: self.columns.fetch(name, start(name), n, wait) for name in self.columns.names(wait)}

    @property
    def steps(self) -> dict[str, list[float]]:  # `train_loss`, `lr` → a value for each training batch
        "Return values by training batch, as lists: 32 MB per million batches and column; `fetch` takes 8"
        return {name: values.tolist() for name, values in self.fetch(self.n_steps).items()}

    @property
    def epochs(self) -> dict[str, list]:  # epoch, train_loss, valid_loss, train_*, valid_*, lr, time_s
        "Return the values by epoch"
        return by_column(self.epoch_rows)

    @property
    def valids(self) -> dict[str, list]:  # batch (training batches before it), epoch, step, valid_*
        "Return the values by validation pass"
        return by_column(self.valid_rows)

    def __len__(self): return len(self.epoch_rows)

    def recent(self, n: int = 20) -> dict[str, float]:  # name of a loss → mean
        "Return the mean losses of the latest `n` training batches"
        res = {}
        for name in (o for o in self.columns.names() if o.startswith('train_loss')):
            found = self.columns.fetch(name, max(self.n_steps - n, 0))
            values = [v for v in found if v == v or name == 'train_loss']     # one of several may be left out
            if found: res[name] = sum(values)/len(values) if values else math.nan
        return res

    @property
    def bad_from(self) -> int | None:  # None if the latest losses are finite
        "Return the number of the training batch from which a training loss stays nan or infinite"
        names, n, res = [o for o in self.columns.names() if o.startswith('train_loss')], self.n_steps, []
        for name in ['train_loss'] if 'train_loss' in names else names:     # others are what a step returned, too
            values, enough = self.columns.fetch(name, 0, n), 1 if name == 'train_loss' else 10
            if n < enough or any(map(math.isfinite, values[-enough:])): continue    # one may be left out of batches
            res.append(next((i for i in range(n, 0, -1) if math.isfinite(values[i - 1])), 0) + 1)
        return min(res, default=None)

    def best(self, first: int = 0) -> int | None:
        "Return the index of the row whose weights were restored, or of the latest fit's best one"
        first, kept = max(first, self.latest.first), self.latest.kept
        return kept if kept is not None and kept >= first else best_row(self.epoch_rows, *self.latest.monitor, first)

    # shown

    def _table(self, first, most, width=None):
        "Return the lines of the epoch table, the first one its header, and the index of the best epoch among the rest"
        best, first_s = self.best(first), self.epoch_rows[0].get('time_s', 1.) if len(self) else 1.
        picked = _picked(len(self), first, most, best)
        rows = [self.epoch_rows[i] for i in picked if isinstance(i, int)]
        head, *cells = [[*o] for o in zip(*_cells(rows, first_s, self.returned, width).values())] or [[]]
        rest = iter(cells)
        lines = [head, *([i] if isinstance(i, str) else next(rest) for i in picked)]
        return lines, None if best is None else picked.index(best)

    def lines(self,
        first: int = 0,             # first row to show
        most: int = 40,             # maximum number of rows: the first, the best and the last ones
        width: int | None = None,   # maximum characters per line, with the most important columns
    ) -> list[list[str]]:           # a list of one string stands for rows left out
        "Return the header and the rows of the epoch table"
        return self._table(first, most, width)[0]

    def newest(self, names: Iterable[str]) -> list[str]:
        "Return the cells of the newest epoch in some columns"
        row, first_s = self.epoch_rows[-1], self.epoch_rows[0].get('time_s', 1.)
        return ['' if name[0] == '+' else format_cell(name, row.get(name, math.nan), first_s) for name in names]

    def text(self, first: int = 0, most: int = 40) -> str:
        "Write the epoch table as text, with a * at the best epoch; rows as in `lines`"
        if len(self) <= first: return 'no epoch yet'
        lines, best = self._table(first, most)
        if best is not None: lines[best + 1][0] = '* ' + lines[best + 1][0]
        return text_table(lines)

    def __str__(self): return self.text()

    __repr__ = __str__

    def html(self, first: int = 0, most: int = 40) -> str:
        "Write the epoch table as HTML, with the best epoch in bold, and name the columns left out"
        if len(self) <= first: return '<p>no epoch yet</p>'
        lines, best = self._table(first, most, 320)
        missing = [o for o in by_column(self.epoch_rows[-1:]) if o not in {*lines[0], 'time_s'}]
        note = f'<div>not shown: {escape(listed(missing))}; learn.history.epochs has all</div>' if missing else ''
        return html_table(lines, bold=best) + note

    def __getitem__(self, name):
        raise TypeError(
            f'a History holds several tables: learn.history.epochs[{name!r}] has the values by '
            'epoch, learn.history.steps those by training batch')

    def _page(self, status):
        "Return HTML of a line, the plot and the table"
        picture = Plot().final(self.plot_data()).html(is_image=True) if self.n_steps else ''
        return f'<div>{escape(status)}</div>{picture}{self.html()}'

    def _repr_html_(self): return self._page(self.latest.status)

    def show(self, status: str = '') -> None:
        "Display the plot and the table in the running cell, and a line above them"
        if marimo_outputs() is not None: return show_bundle({'text/html': self._page(status)})
        from IPython.display import display
        def show(html, text): display({'text/html': html, 'text/plain': text}, raw=True)
        if status: show(f'<div>{escape(status)}</div>', status)
        if self.n_steps: display(Plot().final(self.plot_data()))
        show(self.html(), self.text())

    def _ipython_display_(self):
        at, self.latest.shown_in = self.latest.shown_in, None
        if at is None or at != current_cell(): self.show(self.latest.status)

    def _display_(self): return marimo_view(self, self.latest.shown_in)

    def plot_data(self) -> PlotData:
        "Return what a picture shows of it; it shares the rows, which may grow"
        return PlotData(self.n_steps, lambda start: self.fetch(start=start), self.columns.n_revised, self.epoch_rows,
                        self.ends, self.valid_rows, flags_of(self), self.best, self.latest.monitor[0],
                        self.bad_from, self.recent)

    def plot(self,
        log: bool | None = None,    # logarithmic axis of the losses; None: where a linear one flattens most
    ) -> Any:                       # matplotlib `Figure`, independent of pyplot
        "Draw losses, metrics and learning rates by training batch"
        return Plot().chart(self.plot_data(), log=log).figure()

def flags_of(history: History) -> list[tuple[int, str]]:
    "Return what happened, as (batches so far, text), with the batches that `SpikeGuard` skipped"
    skipped = [o for o in history.spikes if o['action'] == 'skip']
    return [*history.flags, *((o['batch'], f'skipped a batch, {o["why"]} {o[o["why"]]:.4g}') for o in skipped)]
