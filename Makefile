# Every target that needs the environment makes it first (scripts/setup.sh): a fresh clone needs nothing but
# make, a C compiler and some Python 3.12. With a complete environment that costs a few hundredths of a second.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

# Settings of `make demo`, and ARGS, which most targets hand to their command. In the recipes the shell expands them, so
# that blanks and quotes in a value survive.
export MODEL DATA REWARD STEPS ENGINE

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo '  The demo takes MODEL= DATA= REWARD= STEPS= ENGINE=; demo, doctor and the tests take ARGS="...", e.g. ARGS="-k routes".'

.PHONY: setup
setup: ## Make the environment in .venv (ARGS=--reinstall: from scratch)
	@exec bash scripts/setup.sh $(ARGS)

.PHONY: ready
ready:
	@exec bash scripts/setup.sh --quiet

.PHONY: demo
demo: ready ## Train a tiny model with verl on this machine's CPU, and report whether it learned
	@exec $(BIN)/nereus demo $${MODEL:+--model "$$MODEL"} $${DATA:+--data "$$DATA"} $${REWARD:+--reward "$$REWARD"} \
	  $${STEPS:+--steps "$$STEPS"} $${ENGINE:+--engine "$$ENGINE"} $(ARGS)

.PHONY: doctor
doctor: ready ## What is installed here, and what nereus would do with it
	@exec $(BIN)/nereus doctor $(ARGS)

.PHONY: test
test: ready ## Unit and end-to-end tests, without the slow ones
	@exec $(PYTEST) -m "not slow and not gpu" $(ARGS)

.PHONY: test-unit
test-unit: ready ## Unit tests: seconds
	@exec $(PYTEST) -m "not slow and not gpu" tests/unit $(ARGS)

.PHONY: test-e2e
test-e2e: ready ## End-to-end tests: real training runs, minutes
	@exec $(PYTEST) -m "not slow and not gpu" tests/e2e $(ARGS)

.PHONY: test-all
test-all: ready ## All tests, the slow ones too (those for a GPU skip themselves where there is none)
	@exec $(PYTEST) $(ARGS)

.PHONY: lint
lint: ready ## Style, types and the arrows between packages; all of them, then fails if one did
	@status=0; for tool in "ruff check" "ruff format --check" mypy lint-imports; do \
	  echo "$$tool"; $(BIN)/$$tool || status=1; done; exit $$status

.PHONY: format
format: ready ## Put the source in its format, and fix what ruff can fix
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format

.PHONY: clean-runs
clean-runs: ## Remove what runs have written (runs/, outputs/)
	rm -rf runs outputs
