"""Real training programs in a small size, each as its authors write it and with `Learner`

A module has `plain()`, the loop by hand, which returns what was trained (a module, or several) and
what it told (dict: column of the history → values); `learner(**kwargs)`, a `Learner` that does the same
in `N_EPOCHS` epochs; and where more than `learn.model` counts, `result(learn)`, the modules to compare.
What stands above the line `# The loop by hand` belongs to both.
"""
