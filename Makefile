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

.PHONY: run test up bench pictures format install install-test clean
.DEFAULT_GOAL := run

run: install ## the whole chain on this machine: RECIPE=default SEED=0 TESTBED=auto ARGS="..."
	@$(BIN)/dreamshard run --recipe $(RECIPE) --seed $(SEED) $(if $(TESTBED),--testbed $(TESTBED)) $(ARGS)

up: install ## Prefect, MLflow, a worker and all deployments; Ctrl-C ends them
	@$(BIN)/dreamshard up $(ARGS)

# Whole files to each of the two workers: what a file shares is started once.
test: install-test ## format, lint, types, import contracts, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

bench: install-test ## what is measured rather than asserted: quality and speed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks --write RESULTS.md $(ARGS)

pictures: install-test ## the README's pictures of Prefect's and MLflow's pages; needs chromium
	OMP_NUM_THREADS=1 DREAMSHARD_PICTURES=docs/pictures $(BIN)/python -m pytest tests/flows/test_browser.py $(ARGS)

format: install-test ## what `make test` checks of the layout
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## the environment only; the home folder with your results stays
	rm -rf $(VENV)

install: $(VENV)/.installed-$(EXTRA)
install-test: $(VENV)/.installed-$(EXTRA)-test

# Runs pip with $(1); what it says goes to $(LOG) and is shown only where it fails.
pip = $(BIN)/python -m pip install --constraint constraints.txt $(1) >>$(LOG) 2>&1 || \
	{ tail -n 30 $(LOG) >&2; echo "the installation failed; all of what pip said is in $(LOG)" >&2; exit 1; }

# torchrec asks for `fbgemm-gpu` of any version and would pull the GPU build over the CPU one: it goes in without dependencies.
# torch for a machine without a GPU is the same package; its CUDA libraries are simply not used.
$(VENV)/.installed-$(EXTRA): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (once, about 5 minutes; what pip says is in $(LOG))"
	@$(call pip,pip setuptools)
	@$(call pip,--editable '.[$(EXTRA)]' tensordict torchmetrics pyre-extensions)
	@$(call pip,--no-deps torchrec)
	@touch $@

$(VENV)/.installed-$(EXTRA)-test: $(VENV)/.installed-$(EXTRA)
	@echo "installing the test tools (once, less than a minute)"
	@$(call pip,--editable '.[$(EXTRA)$(comma)test$(comma)dask$(comma)ray]')
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null || \
		{ echo "dreamshard needs Python 3.11 or 3.12, which is not on the PATH; install one of them" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
