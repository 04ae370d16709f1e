# One verb each. Every target makes `.venv` first if it is missing or older than what it is made from.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
CODE := ckptcore ckptcli ckptsupervise jaxckpt torchckpt conformance simulation demo examples spec tests benchmarks docs/recipes

.DEFAULT_GOAL := help
.PHONY: help demo demo-failures test test-quick test-long conformance model simulate bench wheel check format clean

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1	/p' Makefile | expand -t 14

demo: $(STAMP) ## Train, kill, restart, compare bit for bit (ARGS=--json prints the figures as JSON, ARGS="--dir DIR" keeps the files)
	@$(BIN)/python -m demo $(ARGS)

demo-failures: $(STAMP) ## Train under supervision through everything that goes wrong, account for it, compare (ARGS="--framework jax", --json, "--dir DIR")
	@$(BIN)/python -m demo.failures $(ARGS)

test: $(STAMP) ## Run all tests (ARGS="-k words" picks some)
	$(BIN)/python -m pytest $(ARGS)

test-quick: $(STAMP) ## Run the quick ones of the tests
	$(BIN)/python -m pytest -m "not slow and not whole" $(ARGS)

test-long: $(STAMP) ## Run what `make test` leaves out: the conformance suite on S3 and with broken adapters, the demos, supervised jobs, the peers of the benchmarks
	$(BIN)/python -m pytest -n0 -m whole $(ARGS)

conformance: $(STAMP) ## Run the conformance suite on both backends (ARGS=--quick for a part of it, ARGS="--html report.html" for a page)
	$(BIN)/python -m ckpt_conformance run --adapter jax --cross torch $(ARGS)

model: ## Check the protocol's model, all interleavings, with spin (ARGS=--large for bigger ones)
	@$(PYTHON) spec/v1/model/check.py $(ARGS) || { status=$$?; test $$status -eq 77; }

wheel: $(STAMP) ## Build the wheel, and try it in clean environments with each extra
	$(BIN)/python tests/check_wheel.py

simulate: $(STAMP) ## Simulate jobs, crashes and weak stores (ARGS="--seeds 0:1000000" for many)
	$(BIN)/python -m simulation run $(ARGS)

bench: $(STAMP) ## Measure saves and restores beside the peers (ARGS="--size small", ARGS="growth" for something else, see benchmarks/README.md)
	@$(BIN)/python -m benchmarks $(ARGS)

check: $(STAMP) ## Check format, lint and types
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP) ## Format the code and fix what the linter can fix
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean: ## Remove the environment and every cache
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "Python 3.11 or newer is needed, $(PYTHON) is %d.%d: make PYTHON=/path/to/python3.11" % v[:2])' >&2
	@echo "Making $(VENV): a few minutes, most of them downloads" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' >&2
	@touch $@
