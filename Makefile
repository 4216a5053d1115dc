# What can be done here: `make help`. Everything that runs needs `make setup` and calls for it by itself.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BACKEND ?= heap-cow
# Arguments for pytest or tox, for instance: make test-fast ARGS="-k value_state -x"
ARGS ?=

BIN := .venv/bin
ENVIRONMENT := .venv/.environment
COMPILED := .venv/.compiled
# Classes of Spark for the Java processes of tests, which start in half of the time with them.
CLASSES := .venv/spark-classes.jsa

# Containers often forbid bytecode. Then each process of Spark, of a host or of a test compiles all that it imports, which
# takes as long as its work.
export PYTHONDONTWRITEBYTECODE :=

# Evaluated by the shell of a recipe, not by make: nobody pays for it who does not run Spark.
WITH_JAVA := JAVA_HOME="$$(scripts/find-java.sh)" && export JAVA_HOME &&

.PHONY: help setup java demo demo-local test test-fast test-long test-quick test-model test-protocol soak faults faults-local chaos bench bench-state bench-segment bench-types bench-checkpoint \
        bench-rocksdb bench-spillable bench-timers bench-keygroups bench-local bench-memory bench-window bench-join bench-nexmark bench-quick bench-drop-in bench-from-spark bench-scale bench-transport bench-sort contract lint format \
        types docs site site-serve coverage tox matrix clean

help: ## what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

# The stamps are newer than what they were made from, so a second `make setup` does nothing.
$(ENVIRONMENT): scripts/make-environment.sh framework/pyproject.toml $(wildcard plugins/*/pyproject.toml) \
                contrib/sqlite/pyproject.toml constraints/spark4x.txt constraints/tools.txt
	scripts/make-environment.sh
	echo '$(CURDIR)' >$@

# An environment does not survive that its folder is moved or its Python removed.
ifneq ($(wildcard $(BIN)/python) $(shell cat $(ENVIRONMENT) 2>/dev/null),$(BIN)/python $(CURDIR))
.PHONY: $(ENVIRONMENT)
endif

# The editable installation compiles extensions beside their sources, where a C compiler is.
$(COMPILED): $(ENVIRONMENT) $(addprefix plugins/heap-cow/,pyproject.toml setup.py) \
             $(wildcard $(addprefix plugins/heap-cow/src/keyedstate_heap_cow/,state_map/*.py *.pyx)) \
             framework/setup.py $(wildcard framework/src/keyedstate/row_path/*.px[yi])
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable framework --editable plugins/heap-cow
	@$(BIN)/python -c 'from keyedstate.row_path import compiled; \
	    print("keyedstate: the per-record path is", "compiled" if compiled else "plain Python")'
	@$(BIN)/python -c 'from keyedstate_heap_cow.compiled_form import build, build_problem; \
	    print("keyedstate: heap-cow is", build(), build_problem())'
	touch $@

$(CLASSES): $(ENVIRONMENT) tests/support/java.py | java $(COMPILED)
	$(WITH_JAVA) PYTHONPATH=tests:tests/spark/jobs $(BIN)/python -m support.java

setup: java $(COMPILED) ## make .venv with everything installed

java:
	@scripts/find-java.sh >/dev/null

demo: setup ## flights through keyed state on Spark, killed half way (BACKEND=heap-cow, nested-map, rocksdb or spillable)
	$(WITH_JAVA) $(BIN)/keyedstate demo --backend $(BACKEND)

demo-local: setup ## the same without Spark and Java, compared with a plain loop
	$(BIN)/keyedstate demo --local --backend $(BACKEND)

test: setup lint types docs test-fast ## all checks and all tests

# Three processes on two cores: each of them waits for a third of its time. Files go in their order, so that long ones
# do not come last. A slow test with several sets of parameters runs with one, a new one in each run; the header says how
# the same is drawn again.
# A debugger wants ARGS="-n 0".
test-fast: setup $(CLASSES) ## the tests alone
	$(WITH_JAVA) $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --draw -m "not long" $(ARGS)

# Before an issue that concerns them is closed, as the campaigns.
test-long: setup $(CLASSES) ## slow tests with all parameters, and those that `make test` leaves out
	$(BIN)/python -m pip install --quiet --requirement tests/bench/nexmark/requirements.txt
	$(WITH_JAVA) $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "long or slow or spark" $(ARGS)

# What needs no Java and no rare event, on one backend.
test-quick: $(COMPILED) ## the framework and the plugins without Spark and without slow tests, on one BACKEND
	KEYEDSTATE_TEST_BACKEND=$(BACKEND) $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --draw -m "not (spark or slow or long)" \
	    tests/framework tests/plugins $(ARGS)

test-model: $(COMPILED) ## the random model test of the copy-on-write map, 10,000,000 operations
	$(BIN)/pytest tests/plugins/heap_cow/test_cowmap_model.py --cow-operations 10000000 --timeout 0 $(ARGS)

test-protocol: $(COMPILED) ## the model of the epoch protocol: every interleaving of two preemptions, 20,000 random histories
	$(BIN)/pytest tests/framework/checkpoint/protocol/test_protocol_model.py --interleavings 20000 --timeout 0 -rP $(ARGS)

soak: setup ## hosts with 5,000,000 entries, in 50 lives that end in every way, and with a gigabyte printed
	$(WITH_JAVA) $(BIN)/pytest --soak --timeout 0 -rP tests/spark/hosts/test_host_soak.py $(ARGS)

# Runs of a campaign; empty for as many as it has by itself.
RUNS ?=
SEED ?= 1
# Numbers of single runs of a campaign; empty for all of them.
ONLY ?=
CAMPAIGN = $(if $(RUNS),--runs $(RUNS)) --seed $(SEED) $(if $(ONLY),--only $(ONLY))

faults: setup ## a campaign of RUNS=140 runs on Spark with kills, failing writes and zombies (SEED=1, ONLY="17 23")
	$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m faults $(CAMPAIGN) --json reports/faults.json $(ARGS)

faults-local: setup ## a campaign of RUNS=200 runs without Spark with kills, delays, guarantees and rescaling (SEED=1, ONLY="17 23")
	PYTHONPATH=tests $(BIN)/python -m faults.local $(CAMPAIGN) $(ARGS)

chaos: setup ## a campaign of RUNS=100 runs on Spark with kills, stops and second drivers in real time (SEED=1, ONLY="17 23")
	$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m faults.chaos $(CAMPAIGN) --json reports/chaos.json $(ARGS)

# Spark with its own Python state needs protobuf, and the peers need much else: environments of their own.
bench: setup ## keyedstate, Spark, Bytewax and Quix Streams in one run, into docs/images
	$(BIN)/tox run -e bench-peers --notest
	$(WITH_JAVA) $(BIN)/tox run -e bench -- $(ARGS)

bench-local: $(COMPILED) ## a local run against a loop over dicts, Bytewax and Quix Streams
	$(BIN)/tox run -e bench-peers --notest
	$(BIN)/python tests/bench/bench_local.py --peers .tox/bench-peers/bin/python $(ARGS)

bench-state: $(COMPILED) ## state tables, snapshots and restores against a plain dict and pyarrow
bench-segment: $(COMPILED) ## segment files against pyarrow
bench-types: $(COMPILED) ## columns of the types against pyarrow
bench-timers: $(COMPILED) ## timers one by one and at once, and firing them
bench-keygroups: $(COMPILED) ## a few timers in very many key groups against a few
bench-memory: $(COMPILED) ## segments, pages and the views over them
bench-sort: $(COMPILED) ## the sorters against sorted() and pyarrow
bench-spillable: $(COMPILED) ## the spillable backend against heap-cow in memory, and rocksdb beyond it
bench-transport: $(COMPILED) ## the frames of hosts against Arrow Flight
bench-rocksdb: $(COMPILED) ## the RocksDB backend against rocksdict with the same bytes
bench-checkpoint: $(COMPILED) ## deltas against full snapshots, rows meanwhile, restores of chains and ranges
bench-state bench-segment bench-types bench-checkpoint bench-timers bench-keygroups bench-memory bench-rocksdb bench-spillable bench-transport bench-sort: bench-%:
	$(BIN)/python tests/bench/bench_$*.py $(ARGS)

bench-window: $(COMPILED) ## windows by columns and row by row, and Spark's own
	$(WITH_JAVA) $(BIN)/python tests/bench/bench_window.py $(ARGS)

bench-join: $(COMPILED) ## an interval join, and Spark's own stream-stream join
	$(WITH_JAVA) $(BIN)/python tests/bench/bench_join.py $(ARGS)

bench-nexmark: $(COMPILED) ## the queries of Nexmark, checked by DuckDB and timed beside Spark's own operators
	$(BIN)/python -m pip install --quiet --requirement tests/bench/nexmark/requirements.txt
	$(WITH_JAVA) $(BIN)/python tests/bench/bench_nexmark.py $(ARGS)

bench-quick: $(COMPILED) ## a few central lanes against their floors in 5 minutes; fails above tests/bench/bounds.toml
	$(BIN)/python tests/bench/bench_quick.py $(ARGS)

bench-drop-in: $(COMPILED) ## one processor on Spark's transformWithState and on keyedstate
	$(WITH_JAVA) $(BIN)/python tests/bench/bench_drop_in.py $(ARGS)

bench-from-spark: $(COMPILED) ## a query with a million keys of Spark's state continues on keyedstate
	$(WITH_JAVA) $(BIN)/python tests/bench/bench_from_spark.py $(ARGS)

bench-scale: $(COMPILED) ## a micro-batch over 10,000 to 10,000,000 keys: time, memory, bytes, restart, rescaling
	$(WITH_JAVA) $(BIN)/python tests/bench/bench_scale.py $(ARGS)

contract: $(COMPILED) ## the contract kit: what BACKEND claims, and whether it holds
	$(BIN)/keyedstate contract $(BACKEND) $(ARGS)

coverage: setup ## the tests with branch coverage
	$(WITH_JAVA) $(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(ENVIRONMENT) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(ENVIRONMENT) ## let ruff put the code into its format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(ENVIRONMENT) ## mypy --strict
	$(BIN)/mypy

docs: $(ENVIRONMENT) ## links, anchors, commands and Python examples of the documentation
	$(BIN)/python scripts/check_docs.py

# What builds the site is nothing that the framework needs: an environment of its own.
site: $(ENVIRONMENT) ## the documentation as a site, into build/site
	$(BIN)/tox run -e site

site-serve: $(ENVIRONMENT) ## the site on a port of this machine, built again with every change
	$(BIN)/tox run -e site -- serve

tox: setup ## every tox environment that this machine has an interpreter for
	$(WITH_JAVA) $(BIN)/tox run $(ARGS)

matrix: setup ## Python x PySpark x backend only
	$(WITH_JAVA) $(BIN)/tox run -m matrix $(ARGS)

clean: ## remove .venv, .tox and everything built
	rm -rf .venv .tox build demo-work .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* reports
	find framework plugins contrib tests scripts -name __pycache__ -prune -exec rm -rf {} +
	find framework plugins contrib \( -name build -o -name '*.egg-info' \) -prune -exec rm -rf {} +
	find framework plugins \( -name '*.so' -o -name not_compiled.json \) -delete
