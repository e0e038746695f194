# Every target works on a fresh machine with Python 3.11+: it makes .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c .ci/constraints.txt
SETUP := $(VENV)/.installed
SETUP_TRAIN := .venv-train/.installed
.DEFAULT_GOAL := help

.PHONY: help quickstart setup format lint types layers check test test-quickstart test-browser test-train clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

$(SETUP): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mbt needs Python 3.11 or newer; specify it with: make PYTHON=python3.11 ..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing mbt into $(VENV) ..."
	@$(PIP) -e '.[embedded,dev]'
	@touch $@

setup: $(SETUP) ## make .venv with mbt, the embedded model's runtime and the developer's tools
	@echo "ready; next:  source $(BIN)/activate  and  mbt run quickstart"

quickstart: $(SETUP) ## run the whole quickstart study on the embedded model and print its table
	@$(BIN)/mbt run manifests/quickstart.toml
	@echo
	@echo "use mbt from here on with:  source $(BIN)/activate"

format: $(SETUP) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(SETUP) ## format check and lint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(SETUP) ## strict types
	@$(BIN)/mypy

layers: $(SETUP) ## imports point down only
	@$(BIN)/lint-imports

check: lint types layers ## everything but the tests: format, lint, types, import layers

test: $(SETUP) ## the tests that need nothing but this machine
	@$(BIN)/python -m pytest -n auto --dist loadgroup

test-quickstart: $(SETUP) ## the main job on the real embedded model
	@$(BIN)/python -m pytest tests/integration/quickstart -q

.PHONY: tiny-mbt
tiny-mbt: $(SETUP_TRAIN) ## the whole method on the embedded model: traces, three trainings, one table (under an hour)
	@.venv-train/bin/mbt run manifests/tiny-mbt.toml

clean: ## remove environments and caches (artifacts in runs/ stay)
	@rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv-browser/.installed: pyproject.toml .ci/constraints.txt
	@test -x .venv-browser/bin/python || $(PYTHON) -m venv .venv-browser
	@.venv-browser/bin/python -m pip --disable-pip-version-check install -q -c .ci/constraints.txt -e . selenium==4.51.0 pytest hypothesis
	@touch $@

test-browser: .venv-browser/.installed ## the HTML report in Chromium (needs the packages chromium and chromium-driver)
	@.venv-browser/bin/python -m pytest tests/integration/browser -q

$(SETUP_TRAIN): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "the CPU build of torch used here is for Python 3.11: make PYTHON=python3.11 test-train"; exit 2; }
	@test -x .venv-train/bin/python || $(PYTHON) -m venv .venv-train
	@echo "installing torch, transformers and trl into .venv-train ..."
	@.venv-train/bin/python -m pip --disable-pip-version-check install -q -c .ci/constraints.txt -e '.[embedded,train,dev]' 'transformers[serving]' gguf tensorboard
	@touch $@

test-train: $(SETUP_TRAIN) ## real trainings on this machine: SFT and GRPO, killed, resumed, served
	@MBT_NO_SKIPS=1 .venv-train/bin/python -m pytest tests/integration/train -q

.PHONY: test-slurm slurm-demo tables
test-slurm: $(SETUP) ## plan and submit on a real one-node Slurm (Debian, as root: starts it)
	@slurm/one_node.sh start
	@MBT_NO_SKIPS=1 $(BIN)/python -m pytest tests/integration/slurm -q

slurm-demo: $(SETUP) ## the quickstart study as Slurm jobs on this machine (start slurm/one_node.sh first)
	@$(BIN)/mbt plan $(MANIFEST) | $(BIN)/mbt submit --slurm --preset one-node
	@$(BIN)/mbt status --watch

MANIFEST ?= manifests/quickstart.toml
tables: $(SETUP) ## print the tables of a study: make tables MANIFEST=manifests/paper.toml
	@$(BIN)/mbt report $(MANIFEST)

.venv-vllm/.installed: .ci/setup_vllm.sh pyproject.toml
	@.ci/setup_vllm.sh $(PYTHON)
	@touch $@

.PHONY: test-vllm
test-vllm: .venv-vllm/.installed ## rollouts on a real vLLM (its CPU build; Python 3.11, 8 GB of memory)
	@MBT_NO_SKIPS=1 .venv-vllm/bin/python -m pytest tests/integration/vllm -q
