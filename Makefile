# `make help` lists the targets. The first one that needs .venv sets it up.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO := .venv/.demo
HOW ?= -n 3 --dist loadfile --no-loadscope-reorder   # for pytest

export PYTHONDONTWRITEBYTECODE =# modules that many processes import are compiled once

.DEFAULT_GOAL := help
.PHONY: help demo test test-versions check lint soak programs gpu outputs docs docs-serve site lab bench bench-peers clean

help:   ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

# $(call set_up,extra,size): install what an extra of settings.ini names, and say how long it took and how large it is
define set_up
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo 'trainer_nb needs Python 3.11 or newer, which $(PYTHON) is not.' >&2; \
	    echo 'Name another one: make PYTHON=python3.12 ...' >&2; exit 1; }
	@echo 'Setting up .venv, once: PyTorch and more, about $(2) on disk; downloads take minutes'
	@start=$$(date +%s); $(PYTHON) -m venv .venv && \
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(1)]' && \
	echo "It took $$(( $$(date +%s) - start )) s, and .venv has $$(du -sh .venv | cut -f1)"
	@touch $@
endef

$(READY): settings.ini setup.py constraints.txt
	$(call set_up,dev,2.1 GB)

$(DEMO): settings.ini setup.py constraints.txt
	$(call set_up,demo,1.4 GB)

demo: $(or $(wildcard $(READY)),$(DEMO))   ## run the quickstart in a Jupyter kernel, and store the notebook and an HTML page in demo/
	@$(BIN)/python tools/demo.py

test: $(READY)   ## run the tests, but the long ones: units, processes, pages in a browser, the package in a clean environment
	$(BIN)/python -m pytest -q $(HOW)

test-versions:   ## run tests and notebooks on the oldest, the pinned and the newest torch, and on one CPU
	$(PYTHON) tools/versions.py $(VERSIONS) -- -m 'not soak and not site and not gpu' $(HOW)

check: lint   ## run the quick checks before a commit: lint, import rules, notebooks in sync, the plain loop's numbers
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_notebooks.py::test_in_sync tests/loop/test_equivalence.py

lint: $(READY)   ## check lines and imports with ruff, and a typed program with mypy, as pyproject.toml says
	$(BIN)/ruff check
	MYPYPATH=. $(BIN)/mypy tests/typed_script.py

soak: $(READY)   ## run the long tests that `make test` leaves out
	$(BIN)/python -m pytest -q -m soak

programs: $(READY)   ## install the libraries of `.[programs]`, 0.4 GB, and run their programs, as `make soak` then does, too
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[programs]'
	$(BIN)/python -m pytest -q -m soak tests/loop/test_libraries.py

gpu:   ## test and measure on a CUDA device, with $(PYTHON) if its torch has one, else with .venv
	@if $(PYTHON) -c 'import sys, pytest, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; \
	then $(PYTHON) tools/gpu.py; \
	else $(MAKE) -s $(READY) && $(BIN)/python tools/gpu.py; fi

outputs: $(READY)   ## run every notebook in a real kernel, and compare the outputs with the stored ones
	$(BIN)/python nbs/_run.py --check

docs: $(READY)   ## build the documentation site; every warning is an error
	$(BIN)/sphinx-build -M html nbs _docs -qEW --keep-going
	@echo 'Open _docs/html/index.html'

docs-serve: $(READY)   ## serve the site on this machine, and rebuild it when a notebook changes
	$(BIN)/sphinx-autobuild nbs _docs/html -q --host 127.0.0.1 --port 0 \
	    --watch CHANGELOG.md --watch CONTRIBUTING.md --re-ignore '/\.|_proc|__pycache__'

site: docs   ## build the site, and open each page in a browser
	$(BIN)/python -m pytest -q -m site tests/browser/test_site.py

lab: $(READY)   ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab nbs

bench: $(READY)   ## run the benchmarks, and store their figures in benchmarks/results
	$(BIN)/python benchmarks

bench-peers: .venv-peers/.ready   ## measure other libraries in their own environment, and store benchmarks/peers.json
	.venv-peers/bin/python benchmarks/peers.py

.venv-peers/.ready: constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt . pytorch-ignite tqdm skorch \
	    lightning transformers accelerate fastai keras trainer-tools
	.venv-peers/bin/python -m pip uninstall -q -y torchvision     # built for another torch, it breaks their imports
	touch .venv-peers/.ready

clean:   ## remove .venv and everything that was built
	rm -rf .venv .venv-peers .venv-versions _docs _proc build dist demo *.egg-info .pytest_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
