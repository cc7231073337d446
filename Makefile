# `make demo` trains CartPole, `make test` checks everything; both set up .venv on their own.
PYTHON ?= python3
CASES ?=
RUNS ?=
ARGS ?=
RESULTS ?=
PIP_FLAGS ?=
CONFIG ?= examples/cartpole_ppo.yaml
RUN ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RAY_READY := $(VENV)/.ready-ray
CONFORMANCE_READY := $(VENV)/.ready-conformance
BENCH_READY := $(VENV)/.ready-bench
DOCS_READY := $(VENV)/.ready-docs
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e

TORCH := $(shell sed -n 's/^\(torch==[^;]*\).*/\1/p' constraints.txt)

export MPLBACKEND ?= Agg

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-ray test-latest test-oldest lint format types unit examples learning bench bench-memory faults kills scale generated docs conformance conformance-page dist-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with everything the other targets need

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	touch $@

$(RAY_READY): $(READY)
	$(INSTALL) '.[dev,ray]'
	touch $@

$(CONFORMANCE_READY): $(READY)
	$(INSTALL) '.[dev,conformance]'
	touch $@

$(BENCH_READY): $(READY)
	$(INSTALL) '.[dev,bench]'
	touch $@

$(DOCS_READY): $(READY)
	$(INSTALL) '.[dev,docs]'
	touch $@

demo: $(READY) ## train CartPole with PPO into a new folder under runs/
	OMP_NUM_THREADS=1 $(BIN)/epibatch train $(CONFIG) --run $(RUN)

test: $(CONFORMANCE_READY) ## lint, types and tests without the slow ones, under 10 minutes on 2 cores
	@MAKE="$(MAKE)" .ci/test

test-slow: $(CONFORMANCE_READY) ## the slow tests, about 20 minutes on 2 cores
	@echo "The slow tests: about 20 minutes on 2 cores."
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not ray"

test-ray: $(RAY_READY) ## the tests of processes on Ray, about 6 minutes on 2 cores
	@echo "Processes on Ray: about 6 minutes on 2 cores."
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/ray

test-latest: ## the tests on the newest releases that pyproject.toml allows, in .venv-latest (torch is the pinned one)
	$(PYTHON) -m venv .venv-latest
	.venv-latest/bin/python -m pip install --quiet $(PIP_FLAGS) -U --upgrade-strategy eager -e '.[dev]' $(TORCH)
	OMP_NUM_THREADS=1 .venv-latest/bin/python -m pytest -n 2 -m "not ray"

test-oldest: ## the tests on the oldest supported releases, constraints-oldest.txt, in .venv-oldest
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet $(PIP_FLAGS) -c constraints-oldest.txt -e '.[dev]' $(TORCH)
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n 2 -m "not ray"

lint: $(READY) ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## mypy --strict on the package
	$(BIN)/mypy
	$(BIN)/mypy src/epibatch/algorithms/algorithm_config.py src/epibatch/algorithms/ppo.py  # sources with a stub

unit: $(CONFORMANCE_READY) ## the tests alone, those beside RLlib included, without the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

examples: $(RAY_READY) ## run every example in full
	set -e; for example in examples/*.py; do echo "== $$example"; OMP_NUM_THREADS=1 $(BIN)/python "$$example"; done

learning: $(READY) ## train the examples to their targets, five seeds each (RUNS="pendulum --seeds 1": some of it)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.learning $(RUNS)

bench: $(BENCH_READY) ## time every row beside RLlib and plain NumPy into docs/benchmarks.md, some minutes (ARGS="--only L1,E1": some of it)
	$(BIN)/python -m benchmarks $(if $(ARGS),$(ARGS),--plot)

bench-memory: $(BENCH_READY) ## memory of a train batch, and of ten million steps of training, some minutes (ARGS="--steps 1000000")
	$(BIN)/python -m benchmarks.memory $(ARGS)

faults: $(READY) ## let environments raise, die and hang, and compare what is returned with their own logs, some minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults

scale: $(RAY_READY) ## sample with 1 to 32 processes, and write docs/internals/scale.md and docs/scale.png, some minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.scale

kills: $(RAY_READY) ## kill processes that sample and learn at random times, and check what learners get, some 20 minutes (ARGS="--algorithm appo")
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kills $(ARGS)

generated: $(READY) ## write what is made of code: stubs, docs/gallery.md with its pictures, docs/internals/features.md, docs/notebooks, a part of docs/errors.md
	$(BIN)/python tests/house/write_stubs.py
	$(BIN)/python tests/house/write_config_stubs.py
	$(BIN)/python tests/house/write_gallery.py
	$(BIN)/python tests/house/write_features.py
	$(BIN)/python tests/house/write_error_page.py
	$(BIN)/python tests/house/write_notebooks.py

docs: $(DOCS_READY) ## build the documentation site in build/site/html and check it, about a minute (Python 3.11 or newer)
	$(BIN)/python tests/house/write_site.py

conformance: $(CONFORMANCE_READY) ## compare with RLlib side by side (CASES=n: random cases of each property; ARGS=folder: some of it)
	mkdir -p runs
	OMP_NUM_THREADS=1 EPIBATCH_REPORT=$(CURDIR)/runs/conformance.json $(if $(CASES),EPIBATCH_CASES=$(CASES)) $(BIN)/python -m pytest -n 2 -m "" $(if $(ARGS),$(ARGS),tests/conformance)

conformance-page: $(CONFORMANCE_READY) ## put the figures of make conformance into docs/internals/conformance.md (RESULTS="a.json b.json": those)
	PYTHONPATH=tests/conformance $(BIN)/python -m oracle.figures $(if $(RESULTS),$(RESULTS),runs/conformance.json)

dist-check: ## build the wheel through the sdist, check what is in it, and use it without extras in .venv-dist
	rm -rf build dist
	$(PYTHON) -m venv --clear .venv-dist
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt build
	.venv-dist/bin/python -m build --outdir dist .
	.venv-dist/bin/python .ci/check_wheel.py dist
	$(PYTHON) -m venv --clear .venv-dist
	.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt dist/*.whl
	.venv-dist/bin/python .ci/check_install.py

clean: ## remove the virtual environments, runs, builds and caches
	rm -rf $(VENV) .venv-latest .venv-oldest .venv-dist runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
