PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test lint soak demo format clean

# One environment for everything; made again when what it must hold changes.
$(VENV)/installed: setup.py
	@command -v $(PYTHON) > /dev/null || { echo "PYTHON=$(PYTHON) was not found: install Python 3.11, 3.12 or 3.13, or name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v <= (3, 13) and "Python %d.%d is not supported: specdec needs 3.11, 3.12 or 3.13; name one with PYTHON=..." % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

$(VENV)/baselines: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[test,baselines,tasks]'
	@touch $@

test: $(VENV)/installed
	$(BIN)/python -m pytest -m 'not soak' -n 2 --dist loadfile

# What is slower: large samples, kills, real weights, other programs, seqio and its data sets.
soak: $(VENV)/baselines
	XLA_FLAGS= $(BIN)/python -m pytest -m soak
	XLA_FLAGS= $(BIN)/python -m pytest tests/test_tasks.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(VENV)/installed
	$(BIN)/python -m experiments.run --gin_file=gin_configs/quickstart.gin --output_dir=output/demo

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .ruff_cache
