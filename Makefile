# Everything a developer or CI runs. A target installs what it needs, once: the environment is made
# from the lock files, and a stamp in it says that it is up to date.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Seeds of `make simulate`: how many, and the first of them; LEDGER: a file to enter them in; WORLD:
# the delay "server", the "meta" server, both in a "cluster", or the "schedule" of replication.
SEEDS ?= 500
FIRST ?= 1
LEDGER ?=
WORLD ?= server

# `make crash`: cycles that end by SIGKILL, cycles with power loss, the seed of the plan, and a rule
# to take out (fsync, names, answer, facts) to see that it is noticed.
CYCLES ?= 500
CUTS ?= 200
SEED ?= 1
BREAK ?=

# `make failover`: failovers of a real group under load; SEED is that of `make crash`; ONLY: kinds
# with one of these words in their names; SOAK: minutes of load before them, with no failover.
FAILOVERS ?= 200
ONLY ?=
SOAK ?= 0

# Injections of `make damage`.
COUNT ?= 200000

# Seconds of `make fuzz`, for all targets together; KEEP=1 writes the corpus anew.
TIME ?= 600
KEEP ?=

# `make java`: the older client that is tried beside the one of tests/qmq_java/pom.xml; which tests.
OLD_QMQ ?= 1.1.3
JAVA_TESTS ?= tests/qmq_java

.PHONY: help install demo test test-long unit check format bench bench-guard simulate simulate-mutants crash failover damage year fuzz java lock clean

help:
	@echo "make install    .venv with .venv/bin/delaywheel"
	@echo "make demo       three nodes play a day of departures in a minute, two processes are killed, Spark reconciles"
	@echo "make test       a little of all that a change can break: seven to eleven minutes on two cores"
	@echo "make test-long  the rest: further seeds, mutants, kills, damage, the demo; twenty to thirty minutes"
	@echo "make unit       what needs no other processes: a minute or two"
	@echo "make check      lint, format, types, import arrows, tidiness, documentation"
	@echo "make bench      the figures of docs/performance.md"
	@echo "make bench-guard   CPU a message on this tree and on the baseline, in turns; five minutes"
	@echo "make simulate SEEDS=500 FIRST=1 [WORLD=meta|cluster|schedule] [LEDGER=docs/campaigns.jsonl]"
	@echo "make simulate-mutants    take each rule away and see the simulation notice (ONLY=\"fsync\")"
	@echo "make crash CYCLES=500 CUTS=200 SEED=1 [BREAK=fsync]   real processes, killed and cut off power"
	@echo "make failover FAILOVERS=200 SEED=1 [ONLY=\"kill disk\"]   a real group loses its master, again and again"
	@echo "make damage COUNT=200000 SEED=1   bytes at rest gone bad: named or harmless, never delivered"
	@echo "make year       a year of departures: reconciled, tampered with, repaired; a quarter of an hour"
	@echo "make fuzz TIME=600 [KEEP=1]   every decoder under a coverage-guided fuzzer"
	@echo "make java       QMQ's own Java on our meta server (needs a JDK and Maven, downloads its libraries)"
	@echo "make format     let ruff format and fix"
	@echo "make lock       choose versions anew (needs uv)"
	@echo "make clean      remove what make made"

install: $(VENV)/.installed

$(VENV)/.made: .ci/python
	@echo "making $(VENV)"
	@python=$$(.ci/python) && "$$python" -m venv $(VENV)
	@touch $@

# The lock names every package with its hashes; this tree itself is installed in place.
$(VENV)/.installed: requirements.lock pyproject.toml distributions/client/pyproject.toml $(VENV)/.made
	@echo "installing what delaywheel runs on into $(VENV)"
	@$(PIP) install --quiet --require-hashes -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable distributions/client --editable .
	@touch $@

$(VENV)/.developing: requirements-dev.lock $(VENV)/.installed
	@echo "installing what tests and checks run on into $(VENV)"
	@$(PIP) install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m examples.departures.demo

# Four at the most: some tests start several processes of their own.
ON_ALL_CORES := --numprocesses auto --maxprocesses 4 --dist worksteal

test: $(VENV)/.developing
	$(BIN)/python -m pytest $(ON_ALL_CORES) -m "not long" --durations=40

# What `make test` leaves out; and properties again, with many more examples (tests/seeds.py).
test-long: $(VENV)/.developing
	DELAYWHEEL_TESTS_LONG=1 $(BIN)/python -m pytest $(ON_ALL_CORES) -m "long or hypothesis" \
		--durations=40

# Without real processes, Spark and simulated worlds.
unit: $(VENV)/.developing
	$(BIN)/python -m pytest $(ON_ALL_CORES) -m "not long and not slow and not process and not spark"

check: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_tidy.py tests/test_docs.py

format: $(VENV)/.developing
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench-guard: $(VENV)/.installed
	$(BIN)/python -m benchmarks.guard

bench: $(VENV)/.developing
	$(BIN)/python -m benchmarks

simulate: $(VENV)/.developing
	$(BIN)/python -m tests.simulation.run --world $(WORLD) --seeds $(SEEDS) --first $(FIRST) \
		$(if $(LEDGER),--ledger $(LEDGER))

# ONLY="fsync split": those with one of these words in their names.
simulate-mutants: $(VENV)/.developing
	$(BIN)/python -m tests.simulation.mutants $(ONLY)

crash: $(VENV)/.developing
	$(BIN)/python -m tests.crash.run --kills $(CYCLES) --cuts $(CUTS) --seed $(SEED) \
		$(if $(BREAK),--break $(BREAK))

failover: $(VENV)/.developing
	$(BIN)/python -m tests.failover_campaign.run --failovers $(FAILOVERS) --seed $(SEED) \
		--soak $(SOAK) $(if $(ONLY),--only "$(ONLY)")

damage: $(VENV)/.developing
	$(BIN)/python -m tests.damage.run --count $(COUNT) --seed $(SEED) --jobs 2 --recover 0.05 --salvage 0.01

year: $(VENV)/.developing
	$(BIN)/python -m tests.proof.run

$(VENV)/.fuzzing: requirements-fuzz.lock $(VENV)/.developing
	@echo "installing the fuzzer into $(VENV)"
	@$(PIP) install --quiet --require-hashes -r requirements-fuzz.lock
	@touch $@

fuzz: $(VENV)/.fuzzing
	$(BIN)/python -m tests.fuzz.run --seconds $(TIME) $(if $(KEEP),--keep)

JAVA := .java
FETCH := mvn --quiet --batch-mode --file tests/qmq_java/pom.xml dependency:copy-dependencies

$(JAVA)/.built: tests/qmq_java/pom.xml $(wildcard tests/qmq_java/java/*.java)
	@echo "downloading QMQ's libraries into $(JAVA), and building what uses them"
	@rm -rf $(JAVA)
	@$(FETCH) -P client -DoutputDirectory=$(CURDIR)/$(JAVA)/client
	@$(FETCH) -P client -DoutputDirectory=$(CURDIR)/$(JAVA)/client-old -Dqmq.client.version=$(OLD_QMQ)
	@$(FETCH) -P broker -DoutputDirectory=$(CURDIR)/$(JAVA)/broker
	@javac -cp "$(JAVA)/client/*" -d $(JAVA)/client/classes tests/qmq_java/java/Client.java
	@javac -cp "$(JAVA)/broker/*" -d $(JAVA)/broker/classes tests/qmq_java/java/Broker.java
	@touch $@

java: $(VENV)/.developing $(JAVA)/.built
	QMQ_JAVA=$(JAVA) $(BIN)/python -m pytest $(JAVA_TESTS)

# The second file holds to the versions of the first, so a test runs on what production runs on.
COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-package delaywheel-client \
	--no-annotate --quiet
INSTALLED := pyproject.toml --extra spark --extra gateway --group build
lock:
	$(COMPILE) $(INSTALLED) --upgrade --output-file requirements.lock
	$(COMPILE) $(INSTALLED) --upgrade --group dev --constraint requirements.lock \
		--output-file requirements-dev.lock
	$(COMPILE) --upgrade --group fuzz --output-file requirements-fuzz.lock

clean:
	rm -rf $(VENV) $(JAVA) build dist .mypy_cache .ruff_cache .pytest_cache .fuzz .hypothesis .import_linter_cache
