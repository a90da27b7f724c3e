# All that is done to this repository; `make help` lists it. The first target that needs .venv sets it up.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test soak docs lab bench clean

help:   ## say what each target does
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' Makefile

$(READY): settings.ini setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo 'trainer_nb needs Python 3.11 or newer, and $(PYTHON) is not. Name one: make PYTHON=python3.12 ...' >&2; exit 1; }
	@echo 'Setting up .venv: once, a minute or two'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)   ## run the quickstart in a Jupyter kernel; leave the notebook and a page in demo/
	@$(BIN)/python tools/demo.py

test: $(READY)   ## run every test: unit tests, every notebook, the package in a clean environment
	$(BIN)/python -m pytest -q -rs -n logical --maxprocesses=4 --dist loadfile

soak: $(READY)   ## run the long campaigns, which `make test` leaves out
	$(BIN)/python -m pytest -q -m soak

docs: $(READY)   ## build the documentation site
	$(BIN)/sphinx-build -M html nbs _docs -qEW --keep-going
	@echo 'Open _docs/html/index.html'

lab: $(READY)   ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab nbs

bench: $(READY)   ## measure what the loop, its display, a search and a checkpoint and a second process cost, and what compiling brings
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/display.py
	$(BIN)/python benchmarks/lr_find.py
	$(BIN)/python -W ignore benchmarks/compile.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/distributed.py

clean:   ## remove .venv and all that was made
	rm -rf .venv _docs _proc build dist demo *.egg-info .pytest_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
