# `make` lists the targets. Everything is installed into .venv, once; nothing else on the machine is touched,
# except that `make test` may install Prometheus from Debian.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements.lock
COMPILE := $(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-header --quiet
APT := $(if $(filter 0,$(shell id -u)),apt-get,sudo -n apt-get)

export DAGSTER_DISABLE_TELEMETRY := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport VIRTUAL_ENV

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## Install into .venv what requirements.lock names (every other target does it first)

$(STAMP): $(LOCK) pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "make: $(PYTHON) is not there: install it (Debian: apt-get install python3 python3-venv) or name another: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is $$("$(PYTHON)" -V 2>&1), 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Run a bundled day of a GPU cluster through the whole pipeline, embedded, and show who pays what
	$(BIN)/finops demo

.PHONY: test
test: $(STAMP) prometheus ## Run all tests (real Prometheus, Postgres, Dagster); PYTEST_ARGS="-k gap" for some
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

.PHONY: quick
quick: $(STAMP) ## Unit tests and cases: what needs no server of its own
	$(BIN)/python -m pytest -n 2 --dist loadfile -q tests/unit tests/cases $(PYTEST_ARGS)

MATRIX := $(CURDIR)/.matrix
NEWEST ?= $(or $(lastword $(sort $(wildcard $(HOME)/.pyenv/versions/3.1[1-9].*/bin/python))),$(PYTHON))

.PHONY: matrix
matrix: $(STAMP) ## The same on NEWEST, the newest Python here, and on the lowest versions that pyproject.toml allows
	@mkdir -p $(MATRIX)
	$(BIN)/uv pip compile pyproject.toml --all-extras --resolution lowest-direct --python-version 3.11 --no-header --quiet --output-file $(MATRIX)/lowest.txt >/dev/null
	$(call try,newest,$(NEWEST),-r $(LOCK) --no-deps --require-hashes)
	$(call try,lowest,$(BIN)/python,-r $(MATRIX)/lowest.txt)

# $(call try,name,python,what to install): an environment of its own, and the quick tests in it
define try
	$(BIN)/uv venv --quiet --clear --python "$(2)" $(MATRIX)/$(1)
	$(BIN)/uv pip install --quiet --python $(MATRIX)/$(1)/bin/python $(3)
	$(BIN)/uv pip install --quiet --python $(MATRIX)/$(1)/bin/python --no-deps --no-build-isolation -e .
	$(MATRIX)/$(1)/bin/python -V
	$(MATRIX)/$(1)/bin/python -m pytest -n 2 --dist loadfile -q tests/unit tests/cases $(PYTEST_ARGS)
endef

.PHONY: bench
bench: $(STAMP) prometheus ## Measure speed and memory as ratios against baselines; BENCH_ARGS="--large 10000 --hours 720"
	$(BIN)/python -m tests.bench $(BENCH_ARGS)

.PHONY: prometheus
prometheus: # The service tests need a real Prometheus with its promtool
	@if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then \
	  echo "make: prometheus is missing, installing it from Debian"; \
	  { $(APT) update -qq && DEBIAN_FRONTEND=noninteractive $(APT) install -y -qq --no-install-recommends prometheus; } >/dev/null \
	    || { echo "make: cannot install prometheus here, and the service tests need it: sudo apt-get install prometheus" >&2; exit 1; }; \
	fi

.PHONY: check
check: $(STAMP) ## Formatting, lint, types, and whether the lock fits pyproject.toml
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	@copy=$$(mktemp); trap 'rm -f "$$copy"' EXIT; cp $(LOCK) "$$copy"; $(COMPILE) --output-file "$$copy" >/dev/null; \
	  diff -u $(LOCK) "$$copy" || { echo "make: $(LOCK) does not fit pyproject.toml: make lock" >&2; exit 1; }

.PHONY: lock
lock: $(STAMP) ## Make requirements.lock fit pyproject.toml, moving nothing else; UPGRADE=--upgrade moves everything
	$(COMPILE) $(UPGRADE) --output-file $(LOCK) >/dev/null

.PHONY: dev
dev: $(STAMP) ## The Dagster UI and daemon on FINOPS_HOME (default .finops)
	@$(BIN)/finops dev
