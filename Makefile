# Every target sets up what it needs; a machine with Python 3.11 and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal
# long searches: every branch is reached without them, and coverage would double their time
SEARCHES := tests/core/test_walk.py tests/core/test_exhaustive.py
# CI samples what they search; WINDROW_SOAK=1 lets them search all of it
SAMPLED := tests/core/test_walk.py tests/rollout
OTHERS := $(filter-out tests/core tests/conftest.py tests/__init__.py tests/__pycache__,$(wildcard tests/*))
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
# whoever forbids it has every process of a run, and every worker of the tests, compile all of the package again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo compare test test-vllm soak check bench examples fix clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## make .venv and install the package with what its tests need

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("windrow needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "windrow: installing into $(VENV), one to three minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## train a tiny model on a multi-turn environment, minutes, no GPU
	@$(BIN)/windrow train examples/demo.yaml

compare: $(STAMP) ## compare scheduling policies on a workload with a long tail, in the simulator
	@$(BIN)/windrow simulate examples/sim/long_tail.yaml --compare

test: $(STAMP) ## everything that CI tests, with branch coverage of the core
	@echo "the core's tables, with coverage"
	@$(PYTEST) tests/core $(SEARCHES:%=--ignore=%) --cov
	@echo "walks, interleavings and everything else"
	@$(PYTEST) $(SEARCHES) $(OTHERS) -m 'not ray'
	@echo "on Ray, in one cluster"
	@$(BIN)/python -m pytest $(OTHERS) -m ray

test-vllm: $(STAMP) $(VLLM)/.installed ## the engines' tests against a real vLLM server; opt-in, 3.5 GB, no part of CI
	@$(BIN)/python tests/vllm/run.py $(VLLM)/bin/python

$(VLLM)/.installed: tests/vllm/requirements.txt
	@echo "windrow: installing vLLM into $(VLLM), three minutes the first time"
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip --disable-pip-version-check --no-input -qq install --requirement $<
	@# built for CUDA, they break the import of a vLLM for the CPU
	@$(VLLM)/bin/python -m pip --disable-pip-version-check --no-input -qq uninstall --yes torchvision torchaudio torchcodec
	@touch $@

soak: $(STAMP) ## 2,000 environments at once of which some crash, hang or eat memory, 200 steps of training, and the long form of what CI samples; minutes, no part of CI
	@WINDROW_SOAK=1 $(BIN)/python -m pytest -q -s --timeout=1800 tests/soak
	@WINDROW_SOAK=1 $(PYTEST) -q --timeout=1800 $(SAMPLED) -m 'not ray'
	@WINDROW_SOAK=1 $(BIN)/python -m pytest -q --timeout=1800 tests/rollout/ray/test_scenarios.py tests/rollout/test_contract_races.py -m ray

check: $(STAMP) ## format, lint, layers, types
	@echo "format"; $(BIN)/ruff format --check --output-format concise . > $(VENV)/said.txt || { cat $(VENV)/said.txt; exit 1; }
	@echo "lint"; $(BIN)/ruff check --quiet --output-format concise .
	@echo "layers"; $(BIN)/lint-imports --no-logo --no-cache > $(VENV)/said.txt || { cat $(VENV)/said.txt; exit 1; }
	@echo "types"; $(BIN)/mypy --no-error-summary
	@echo "all good"

bench: $(STAMP) ## measure each part beside its alternative
	@for part in core batch router engine sandbox async trl ray; do $(BIN)/windrow bench $$part || exit 1; done

examples: $(STAMP) ## run every example at full size
	@for script in examples/*.py; do echo "$$script"; $(BIN)/python $$script || exit 1; done
	@for config in examples/rollout/*.yaml; do echo "$$config"; $(BIN)/windrow rollout $$config || exit 1; done
	@for config in examples/demo.yaml examples/train/*.yaml examples/ray/*.yaml; do echo "$$config"; $(BIN)/windrow train $$config || exit 1; done
	@for config in examples/sim/*.yaml; do echo "$$config"; $(BIN)/windrow simulate $$config || exit 1; done

fix: $(STAMP) ## format and repair what can be repaired
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

clean: ## remove everything that make made
	rm -rf $(VENV) $(VLLM) runs .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis .coverage build dist
	find src tests examples -type d -name __pycache__ -prune -exec rm -rf {} +
