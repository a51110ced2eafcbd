# Everything a developer or CI runs. A target installs what it needs, once: the environment is made
# from the lock files, and a stamp in it says that it is up to date.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Seeds of `make simulate`: how many, and the first of them.
SEEDS ?= 500
FIRST ?= 1

.PHONY: help install demo test unit check format docs bench simulate lock clean

help:
	@echo "make install    .venv with .venv/bin/delaywheel"
	@echo "make demo       a day of departures in a minute, with a crash in the middle"
	@echo "make test       all tests"
	@echo "make unit       the quick ones"
	@echo "make check      lint, format, types, import arrows, tidiness, documentation"
	@echo "make bench      the figures of docs/performance.md"
	@echo "make simulate SEEDS=500 FIRST=1"
	@echo "make format     let ruff format and fix"
	@echo "make docs       write docs/delay-server.toml and docs/settings.md anew"
	@echo "make lock       choose versions anew (needs uv)"
	@echo "make clean      remove what make made"

install: $(VENV)/.installed

$(VENV)/.made: .ci/python
	@echo "making $(VENV)"
	@python=$$(.ci/python) && "$$python" -m venv $(VENV)
	@touch $@

# The lock names every package with its hashes; this tree itself is installed in place.
$(VENV)/.installed: requirements.lock pyproject.toml $(VENV)/.made
	@echo "installing what delaywheel runs on into $(VENV)"
	@$(PIP) install --quiet --require-hashes -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.developing: requirements-dev.lock $(VENV)/.installed
	@echo "installing what tests and checks run on into $(VENV)"
	@$(PIP) install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m examples.departures.demo

test: $(VENV)/.developing
	$(BIN)/python -m pytest

# Without real processes and long campaigns: below two minutes.
unit: $(VENV)/.developing
	$(BIN)/python -m pytest -m "not slow and not process"

check: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_tidy.py tests/test_docs.py

format: $(VENV)/.developing
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Whoever changes a setting runs this; the tests compare.
docs: $(VENV)/.installed
	$(BIN)/delaywheel settings > docs/delay-server.toml
	$(BIN)/delaywheel settings --format markdown > docs/settings.md

bench: $(VENV)/.developing
	$(BIN)/python -m benchmarks

simulate: $(VENV)/.developing
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --first $(FIRST)

# The second file holds to the versions of the first, so a test runs on what production runs on.
COMPILE := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --quiet
lock:
	$(COMPILE) --upgrade --group build --output-file requirements.lock
	$(COMPILE) --upgrade --group build --group dev --constraint requirements.lock \
		--output-file requirements-dev.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
