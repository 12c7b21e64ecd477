# make demo | test | check | lint | bench | bench-compare | mutants | fuzz | fast-mutants | remote-mutants | faults |
# conform-live | clean.
# Each creates .venv and installs what it needs, once.

PYTHON := $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DEMO := no-offload cpu-lru cpu-arc

# conform-live: releases of vLLM, and what their schedulers import. PyPI's torch brings CUDA along, which is not needed:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares the download.
VERSIONS ?= 0.33.0 0.23.0
LIVE := .venv-live
VLLM := .vllm
LIVE_PACKAGES := torch==2.13.0 "transformers>=5.16.1,<5.21" blake3 cachetools cbor2 cloudpickle einops filelock \
	msgspec numpy pillow prometheus_client psutil pydantic pyyaml pyzmq regex requests tqdm

.PHONY: demo test check lint bench bench-compare mutants fuzz fast-mutants remote-mutants faults conform-live clean
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
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

# Break one rule at a time: does a recording of the real vLLM notice? About 2 minutes on 2 cores.
mutants: $(VENV)/.test
	$(BIN)/python tests/mutation/run.py

# 200 random fault scripts over small worlds, every invariant at every step. Under a minute on 2 cores.
faults: $(VENV)/.test
	$(BIN)/python tests/faults/campaign.py

# 5,000 random worlds, played by the fast engine and by the reference. About 2 minutes on 2 cores.
fuzz: $(VENV)/.test
	$(BIN)/python tests/fast/campaign.py

# Break one rule of the fast engine at a time: does a random world notice?
fast-mutants: $(VENV)/.test
	$(BIN)/python tests/fast/run_mutants.py

# Break one rule of prefill and decode apart at a time: does a test notice?
remote-mutants: $(VENV)/.test
	$(BIN)/python tests/remote/run_mutants.py

# Some cases only: make bench ARGS='--only b c', or ARGS=--quick
bench: $(VENV)/.run
	$(BIN)/python tests/benchmarks/bench.py --json bench.json $(ARGS)

# New over old per case: make bench-compare OLD=a.json NEW=b.json
bench-compare: $(VENV)/.run
	$(BIN)/python tests/benchmarks/bench.py --compare $(OLD) $(NEW)

$(LIVE)/.packages: Makefile
	$(PYTHON) -m venv $(LIVE)
	$(LIVE)/bin/python -m pip install -qq --disable-pip-version-check $(LIVE_PACKAGES)
	touch $@

# Only the wheel's Python files are kept.
$(VLLM)/%/.unpacked: | $(LIVE)/.packages
	rm -rf $(VLLM)/$* $(VLLM)/wheel-$*
	$(LIVE)/bin/python -m pip download -qq --disable-pip-version-check --no-deps --dest $(VLLM)/wheel-$* vllm==$*
	$(LIVE)/bin/python kvsim/conform/live/unpack.py $(VLLM)/wheel-$*/*.whl $(VLLM)/$*
	rm -rf $(VLLM)/wheel-$*
	touch $@

# All scenarios of a release, recorded now and compared: make conform-live VERSIONS=0.33.0
conform-live: $(VENV)/.run $(LIVE)/.packages $(VERSIONS:%=$(VLLM)/%/.unpacked)
	status=0; for version in $(VERSIONS); do \
	    recorded=$$(cd tests/golden/recordings/$$version && ls *.jsonl.gz); \
	    $(BIN)/kvsim conform --live $$(printf 'tests/golden/scenarios/%s ' $$recorded | sed 's/\.jsonl\.gz/.json/g') \
	        --python $(LIVE)/bin/python --vllm-source $(VLLM)/$$version || status=1; \
	done; exit $$status

clean:
	rm -rf $(VENV) $(LIVE) $(VLLM) bench.json runs dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
