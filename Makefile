# make demo | test | check | lint | bench | clean. Each creates .venv and installs what it needs, once.

PYTHON := $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DEMO := no-offload cpu-lru cpu-arc

.PHONY: demo test check lint bench mutants clean
.DEFAULT_GOAL := test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps make the second time instant; they are older than these files only when the files changed.
$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@ $(VENV)/.run

demo: $(VENV)/.run
	$(foreach name,$(DEMO),$(BIN)/kvsim run experiments/demo/$(name).yaml --overwrite &&) true
	$(BIN)/kvsim compare $(addprefix runs/demo/,$(DEMO)) -o runs/demo/comparison

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

# Break one rule at a time: does a recording of the real vLLM notice? About 4 minutes on 2 cores.
mutants: $(VENV)/.test
	$(BIN)/python tests/mutation/run.py

bench: $(VENV)/.run
	$(BIN)/python tests/benchmarks/bench_reference.py --json bench.json

clean:
	rm -rf $(VENV) bench.json runs dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
