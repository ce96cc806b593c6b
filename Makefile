# Every target has a help line; `make` alone prints them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
# Tests start hundreds of Pythons: where compiled modules are not kept, each of them compiles all of this project again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements/build.txt requirements/dev.txt
# The stamp carries the hash of what the environment is made of, so a changed lock makes a new one.
STAMP := $(VENV)/.stamp-$(shell cat $(LOCKS) | sha256sum | cut -c1-16)
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.stamp-$(shell cat requirements/build.txt requirements/docs.txt | sha256sum | cut -c1-16)
WITH_JAVA := scripts/with-java

help:  ## print this list
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

# ---- environment -----------------------------------------------------------------------------------------

env: $(STAMP)  ## make .venv from the lock files (does nothing when it is up to date)

$(STAMP):
	@echo "statebed: making $(VENV) (first time: one to three minutes)"
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "statebed needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make env PYTHON=python3.11")'
	rm -rf $(VENV)
	# Debian's python3 may lack the part that puts pip into a new environment; its own pip can do that.
	$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || {
	  rm -rf $(VENV)
	  $(PYTHON) -m venv --without-pip $(VENV) &&
	  $(PYTHON) -m pip --python $(BIN)/python install -q --require-hashes -r requirements/build.txt
	} || { rm -rf $(VENV); echo "statebed: $(PYTHON) can make no virtual environment. Debian/Ubuntu: sudo apt-get install python3-venv python3-pip" >&2; exit 69; }
	$(BIN)/python -m pip install -q --require-hashes -r requirements/build.txt
	$(BIN)/python -m pip install -q --no-build-isolation --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	touch $@

java: ## find Java 17 or newer, or install it where that can be done
	@$(WITH_JAVA) java -version 2>&1 | head -n 1

lock: env  ## resolve the lock files again (names no index)
	$(BIN)/uv pip compile requirements/build.in --generate-hashes --python-version 3.11 --universal --upgrade -q -o requirements/build.txt --custom-compile-command "make lock"
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --generate-hashes --python-version 3.11 --universal --upgrade -q -o requirements/dev.txt --custom-compile-command "make lock"

	$(BIN)/uv pip compile --group docs --generate-hashes --python-version 3.11 --universal --upgrade -q -o requirements/docs.txt --custom-compile-command "make lock"

proto: env  ## generate the protobuf code again from its schema
	$(BIN)/python scripts/generate_proto.py

clean:  ## remove the environment, caches and demo state
	rm -rf $(VENV) $(DOCS_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis artifacts demo-state spark-warehouse

# ---- documentation ---------------------------------------------------------------------------------------

$(DOCS_STAMP): $(STAMP)
	@rm -rf $(DOCS_VENV)
	$(BIN)/python -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install -q --require-hashes -r requirements/build.txt
	$(DOCS_VENV)/bin/python -m pip install -q --no-build-isolation --require-hashes -r requirements/docs.txt
	touch $@

docs: $(DOCS_STAMP)  ## build the documentation site into artifacts/site; every link is checked
	$(call timed,docs site,NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build -q)
	@echo "read it: $(PYTHON) -m http.server -d artifacts/site --bind 127.0.0.1 8000"

# ---- see it run ------------------------------------------------------------------------------------------

demo: env  ## run the Nexmark demo job on local Spark; a second run resumes
	$(WITH_JAVA) $(BIN)/statebed demo

demo-crash: env  ## kill the demo job with SIGKILL in mid-epoch, restart it, compare with a batch recomputation
	$(WITH_JAVA) $(BIN)/statebed demo --crash

doctor: env  ## check Java, Python, disk and put-if-absent on this machine
	$(WITH_JAVA) $(BIN)/statebed doctor

# ---- tests -----------------------------------------------------------------------------------------------
# Each part prints its time; `make test` runs them all. `|| exit`: a shell with -e goes on when one of `a && b` fails.

PYTEST := $(BIN)/python -m pytest -q
# Tests of one part run in two processes: whole files for those with a Spark of their own, else whichever is next.
BOTH_CORES := -n 2 --dist worksteal
BOTH_CORES_BY_FILE := -n 2 --dist loadfile
# A third of the processor time of a Spark that lives for seconds: no second compiler, no parallel collector, and classes
# from an archive. An archive that does not fit is ignored; its warnings would stand in what Spark's scripts read.
SHORT_LIVED := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable
ARCHIVE := $(VENV)/spark-classes.jsa
QUICK_JAVA := JAVA_TOOL_OPTIONS="$(SHORT_LIVED) -XX:SharedArchiveFile=$(abspath $(ARCHIVE))" $(WITH_JAVA)

$(ARCHIVE): $(STAMP) scripts/spark_classes.py
	@echo "statebed: making $@, which lets the Sparks of tests start faster"
	JAVA_TOOL_OPTIONS="$(SHORT_LIVED)" $(WITH_JAVA) $(BIN)/python scripts/spark_classes.py $@ >$(VENV)/spark-classes.log 2>&1 ||
	  { echo "statebed: it cannot be made here (see $(VENV)/spark-classes.log); tests go on without"; touch $@; }

define timed
	@start=$$(date +%s); { $(2); } || exit $$?; echo "== $(1): $$(( $$(date +%s) - start )) s"
endef

test: check test-unit test-crash mutants test-s3 test-conformance test-spark test-cluster test-browser test-docs docs  ## set up everything and run the whole suite (about 35 minutes on two slow cores)
	@echo "== whole suite passed"

check: env  ## ruff, mypy strict, import directions
	$(call timed,check,$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(PYTEST) tests/architecture)

test-unit: env  ## unit and model tests; those of keyed tables also with compiled loops for the smallest batches
	$(call timed,unit,$(PYTEST) $(BOTH_CORES) tests/model tests/unit)
	$(call timed,unit compiled,STATEBED_COMPILED=always $(PYTEST) $(BOTH_CORES) tests/model/test_engine_model.py tests/model/test_keyed_view.py tests/unit/state/test_keyed*)

test-crash: env  ## simulation: a crash at every store operation, zombies, forks, races
	$(call timed,crash sweep,$(PYTEST) $(BOTH_CORES) tests/simulation)

MUTANTS ?=
mutants: env  ## bring known failures back, one at a time, and require that a test finds each (MUTANTS="08 17")
	$(call timed,mutants,$(BIN)/python scripts/run_mutants.py $(MUTANTS))

test-s3: env  ## storage and protocol on a real S3 server (seaweedfs, started on loopback)
	$(call timed,s3,$(PYTEST) $(BOTH_CORES) tests/s3)

test-conformance: env  ## files read back with nothing but protobuf and DuckDB; operators and Nexmark against DuckDB
	$(call timed,conformance,$(PYTEST) $(BOTH_CORES) tests/conformance)

test-spark: env $(ARCHIVE)  ## the pipeline on a local Spark: replay, restart, crash, equality with DuckDB
	$(call timed,spark,$(QUICK_JAVA) $(PYTEST) $(BOTH_CORES_BY_FILE) -m "not cluster and not long" tests/spark)

test-cluster: env $(ARCHIVE)  ## the pipeline on a Spark cluster whose processes die, its state on a real S3 server
	$(call timed,cluster,$(QUICK_JAVA) $(PYTEST) -m "cluster and not long" tests/spark)

test-browser: env $(ARCHIVE)  ## the dashboard in a real browser, while jobs write, one of them on Spark
	$(call timed,browser,scripts/find-chromium >/dev/null && $(QUICK_JAVA) $(PYTEST) $(BOTH_CORES_BY_FILE) -m "not alone and not long" tests/browser)
	$(call timed,browser alone,$(PYTEST) -m alone tests/browser)

test-docs: env $(ARCHIVE)  ## every code block of README and docs
	$(call timed,docs,$(QUICK_JAVA) $(PYTEST) $(BOTH_CORES) tests/docs)

test-azure: env  ## storage on Azure's emulator (npm azurite; not part of make test)
	$(call timed,azure,$(PYTEST) tests/azure)

KILLS ?= 50
test-kills: env  ## the crash demo with 50 kills (KILLS=50), compared with a batch recomputation
	$(call timed,kills,$(WITH_JAVA) $(BIN)/statebed demo --crash --kills $(KILLS) --state artifacts/kills)

soak-cluster: env $(ARCHIVE)  ## executors, Python workers, tasks and drivers of a cluster die 50 times (KILLS=50), at random and at exact points
	$(call timed,soak,KILLS=$(KILLS) $(QUICK_JAVA) $(PYTEST) -s -m "cluster and long" tests/spark)

test-long: env  ## what takes longer: deep crash sweeps, thousands of epochs, ten times the examples of property tests
	$(call timed,long,$(WITH_JAVA) $(PYTEST) -m long tests)
	$(call timed,property tests at length,TEST_EFFORT=10 $(PYTEST) $(BOTH_CORES) -o timeout=3600 tests/model tests/unit)

# ---- benchmarks ------------------------------------------------------------------------------------------

BENCH ?= engine --quick

bench: env  ## measure against other stores (BENCH="engine --quick"; not part of make test)
	$(BIN)/python -m bench $(BENCH)

.PHONY: help docs env java lock proto clean demo demo-crash doctor test check test-unit test-crash mutants test-s3 test-conformance test-spark test-cluster test-browser test-docs test-azure test-kills soak-cluster test-long bench
