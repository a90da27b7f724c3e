# All that is done to this repository; `make help` lists it. The first target that needs .venv sets it up.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test soak gpu outputs docs docs-serve site lab bench bench-peers clean

help:   ## say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' Makefile

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
	$(BIN)/python -m pytest -q -rs -n 3 --dist loadfile

soak: $(READY)   ## run the long campaigns, which `make test` leaves out
	$(BIN)/python -m pytest -q -m soak

gpu:   ## test and measure on a CUDA device, with $(PYTHON) if it has torch for one, else with .venv; elsewhere say what would run
	@if $(PYTHON) -c 'import sys, pytest, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then $(PYTHON) tools/gpu.py; \
	else $(MAKE) -s $(READY) && $(BIN)/python tools/gpu.py; fi

outputs: $(READY)   ## run all notebooks in real kernels, and compare with the outputs that they hold
	$(BIN)/python nbs/_run.py --check

docs: $(READY)   ## build the documentation site; every warning is an error
	$(BIN)/sphinx-build -M html nbs _docs -qEW --keep-going
	@echo 'Open _docs/html/index.html'

docs-serve: $(READY)   ## serve the site on this machine, and build it again when a notebook changes
	$(BIN)/sphinx-autobuild nbs _docs/html -q --host 127.0.0.1 --port 0 --watch CHANGELOG.md --watch CONTRIBUTING.md --re-ignore '/\.|_proc|__pycache__'

site: docs   ## build the site, and open each page in a browser
	$(BIN)/python -m pytest -q -rs -m site tests/browser/test_site.py

lab: $(READY)   ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab nbs

bench: $(READY)   ## measure the loop, short epochs, a job from end to end, the display, a search, checkpoints, compiling, imports and memory; what they say is kept in benchmarks/results
	$(BIN)/python benchmarks

bench-peers: .venv-peers/.ready   ## measure other libraries beside ours, in an environment of their own; stores benchmarks/peers.json
	.venv-peers/bin/python benchmarks/peers.py

.venv-peers/.ready: constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt . pytorch-ignite tqdm skorch lightning transformers accelerate fastai keras trainer-tools
	.venv-peers/bin/python -m pip uninstall -q -y torchvision     # made for another torch, it stops the others from being imported
	touch .venv-peers/.ready

clean:   ## remove .venv and all that was made
	rm -rf .venv .venv-peers _docs _proc build dist demo *.egg-info .pytest_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
