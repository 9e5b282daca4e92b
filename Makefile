# `make run` and `make test` need Python 3.11 or 3.12, make and git, nothing else.
SHELL := /bin/bash
VENV ?= .venv
PYTHON := $(shell command -v python3.11 || command -v python3.12 || command -v python3)
EXTRA := $(shell nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
BIN := $(VENV)/bin
LOG := $(VENV)/install.log
comma := ,
RECIPE ?= default
SEED ?= 0
TESTBED ?=
ARGS ?=

export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Both cores; whole files per worker, because the tests of a file share fixtures; a test that ends its worker fails
# and ends the run (after a restart, xdist 3.8.0 can wait for ever). The slowest tests are listed at the end.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=20 --durations-min=5
QUICK := tests/dreamshard tests/storage/lake

.PHONY: help run up check lint test test-all baseline bench docs pictures format lock audit install install-test clean
.DEFAULT_GOAL := run

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.* ## (.*)/  \1\t\2/p' Makefile | expand -t 14

run: install ## run the whole chain on this machine: RECIPE=default SEED=0 TESTBED=auto ARGS="..."
	@$(BIN)/dreamshard run --recipe $(RECIPE) --seed $(SEED) $(if $(TESTBED),--testbed $(TESTBED)) $(ARGS)

up: install ## start Prefect, MLflow, a worker and all deployments; Ctrl-C stops them
	@$(BIN)/dreamshard up $(ARGS)

check: lint ## check a change in a minute and a half: lint, and the tests of the library and the lake
	$(PYTEST) $(PARALLEL) -m quick $(QUICK) $(ARGS)

lint: install-test ## check format, lint, types, and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint ## run lint and all tests but those that take minutes each: about 9 minutes on two cores
	$(PYTEST) $(PARALLEL) -m "not (long or browser)" $(ARGS)

test-all: lint ## run lint and all tests: more than half an hour on two cores
	$(PYTEST) $(PARALLEL) $(ARGS)

baseline: install-test ## compare costs of plans and errors with the frozen ones; minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.baseline $(ARGS)

bench: install-test ## measure quality and speed; figures go to tests/benchmarks/data
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks $(ARGS)

docs: $(VENV)/.installed-docs ## build the site of README, RESULTS and docs/ into site/; a broken link or reference fails
	$(BIN)/python -m mkdocs build --strict

pictures: install-test ## take the pictures of docs/pictures again: pages of Prefect and MLflow, plots; needs chromium
	DREAMSHARD_PICTURES=docs/pictures $(PYTEST) tests/flows/test_browser.py $(ARGS)
	$(BIN)/python docs/pictures/draw.py

format: install-test ## format the code and apply the linter's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(BIN)/python ## write the lock files again after a change of pyproject.toml or constraints.txt
	$(BIN)/python -m pip install --quiet uv==0.13.9
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python lock/renew.py

audit: ## look the locked packages up in PyPI's list of known vulnerabilities; needs pypi.org's JSON pages
	$(PYTHON) -m venv $(VENV)-audit && $(VENV)-audit/bin/pip install --quiet pip-audit==2.10.1
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps $(foreach file,$(wildcard lock/*.txt),--requirement $(file)) || \
		{ echo "a package is vulnerable, or PyPI's list could not be read: see above" >&2; exit 1; }

clean: ## remove the environment; the home folder with your results stays
	rm -rf $(VENV)

install: $(VENV)/.installed-$(EXTRA)
install-test: $(VENV)/.installed-$(EXTRA)-test

# Runs pip install with $(1); its output goes to $(LOG) and is shown only if it fails.
pip = $(BIN)/python -m pip install $(1) >>$(LOG) 2>&1 || \
	{ tail -n 30 $(LOG) >&2; echo "the installation failed; pip's whole output is in $(LOG)" >&2; exit 1; }
# The packages of a file of lock/, each only if it has one of the hashes there.
locked = $(call pip,--require-hashes --no-deps $(foreach name,$(1),--requirement lock/$(name).txt))

# torch for CPUs has no hash in lock/, since its builds differ by index; with CUDA it comes from lock/cuda.txt. torch of PyPI
# also runs on a machine without a GPU; its CUDA libraries stay unused.
$(VENV)/.installed-$(EXTRA): pyproject.toml constraints.txt $(wildcard lock/*.txt) | $(BIN)/python
	@echo "installing into $(VENV) (once, about 5 minutes; pip's output is in $(LOG))"
	@$(call locked,base)
	@$(call locked,$(EXTRA))
	@$(call pip,--constraint constraints.txt torch)
	@$(call pip,--no-deps --no-build-isolation --editable .)
	@touch $@

$(VENV)/.installed-$(EXTRA)-test: $(VENV)/.installed-$(EXTRA)
	@echo "installing the test tools (once, less than a minute)"
	@$(call locked,test)
	@$(call locked,ray)
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-$(EXTRA)
	@$(call locked,docs)
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null || \
		{ echo "dreamshard needs Python 3.11 or 3.12, which is not on the PATH; install one of them" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
