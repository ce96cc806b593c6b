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

	$(BIN)/uv pip compile requirements/flink.in --generate-hashes --python-version 3.11 --universal --upgrade -q -o requirements/flink.txt --custom-compile-command "make lock"
	$(BIN)/uv pip compile --group docs --generate-hashes --python-version 3.11 --universal --upgrade -q -o requirements/docs.txt --custom-compile-command "make lock"

proto: env  ## generate the protobuf code again from its schema
	$(BIN)/python scripts/generate_proto.py

dist: env  ## build the wheel and the source distribution into artifacts/dist
	$(BIN)/uv build -q --no-build-isolation --python $(BIN)/python -o artifacts/dist

release: env  ## build the packages, check them in an empty environment, run the tutorial there, say what to do next
	$(BIN)/python scripts/release.py

clean:  ## remove the environment, caches and demo state
	rm -rf $(VENV) $(DOCS_VENV) .venv-spark-* .venv-flink .pytest_cache .mypy_cache .ruff_cache .hypothesis artifacts demo-state spark-warehouse

# ---- documentation ---------------------------------------------------------------------------------------

$(DOCS_STAMP): $(STAMP)
	@rm -rf $(DOCS_VENV)
	$(BIN)/python -m venv --without-pip $(DOCS_VENV)
	$(BIN)/python -m pip --python $(DOCS_VENV)/bin/python install -q --require-hashes -r requirements/build.txt
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

KAFKA_KILLS ?= 3
demo-kafka: env  ## from a Kafka topic to a Kafka topic, exactly once: kill driver, worker and broker, and compare
	$(BIN)/python scripts/demo_kafka.py --kills $(KAFKA_KILLS)

doctor: env  ## check Java, Python, disk and put-if-absent on this machine
	$(WITH_JAVA) $(BIN)/statebed doctor

# ---- tests -----------------------------------------------------------------------------------------------
# scripts/run_suite.py says what the parts are. It runs three commands at once, and ends with a table of their times.

PYTEST := $(BIN)/python -m pytest -q
SUITE := $(BIN)/python scripts/run_suite.py $(if $(KEEP_GOING),--keep-going)

define timed
	@start=$$(date +%s); { $(2); } || exit $$?; echo "== $(1): $$(( $$(date +%s) - start )) s"
endef

quick: env  ## after every edit: check, most unit tests, crash tests (less than 3 minutes on two cores)
	@$(SUITE) quick

test: env  ## before every merge, and in CI: set up everything and run the whole suite (about 25 minutes on two cores)
	@$(SUITE) test

test-long: env  ## before a release: deep crash sweeps, thousands of epochs, twenty times the examples of property tests
	@$(SUITE) long

check: env  ## ruff, mypy strict, import directions, house rules
	@$(SUITE) check

test-unit: env  ## unit and model tests; those of keyed tables also with compiled loops for the smallest batches
	@$(SUITE) unit

test-crash: env  ## simulation: a crash at every store operation, zombies, forks, races
	@$(SUITE) crash

MUTANTS ?=
mutants: env  ## bring known failures back, one at a time, and require that a test finds each (MUTANTS="08 17")
	$(call timed,mutants,$(BIN)/python scripts/run_mutants.py $(MUTANTS))

test-s3: env  ## storage and protocol on a real S3 server (seaweedfs, started on loopback)
	@$(SUITE) s3

test-conformance: env  ## files read back with nothing but protobuf and DuckDB; operators and Nexmark against DuckDB
	@$(SUITE) conformance

test-spark: env  ## the pipeline on a local Spark: replay, restart, crash, equality with DuckDB
	@$(SUITE) spark

test-kafka: env  ## source and sink on a real Kafka broker (jars through Maven), which is killed
	@$(SUITE) kafka

test-cluster: env  ## the pipeline on a Spark cluster whose processes die, its state on a real S3 server
	@$(SUITE) cluster

test-browser: env  ## the dashboard in a real browser, while jobs write, one of them on Spark
	@$(SUITE) browser

test-docs: env  ## every code block of README and docs
	@$(SUITE) docs

test-azure: env  ## storage on Azure's emulator (npm azurite; not part of make test)
	$(call timed,azure,$(PYTEST) tests/azure)

VERSIONS ?=
test-versions: env  ## a smoke set on every supported Spark (VERSIONS="4.1"); all together write the table of docs/reference/versions.md
	$(call timed,versions,$(BIN)/python scripts/spark_versions.py $(VERSIONS))

KILLS ?= 50
test-kills: env  ## the crash demo with 50 kills (KILLS=50), compared with a batch recomputation
	$(call timed,kills,$(WITH_JAVA) $(BIN)/statebed demo --crash --kills $(KILLS) --state artifacts/kills)

soak-cluster: env  ## executors, Python workers, tasks and drivers of a cluster die 50 times (KILLS=50), at random and at exact points
	@KILLS=$(KILLS) $(SUITE) soak

# ---- benchmarks ------------------------------------------------------------------------------------------

BENCH ?= engine --quick

bench: env  ## measure against other stores (BENCH="engine --quick"; not part of make test)
	$(BIN)/python -m bench $(BENCH)

flink-env: env  ## install Flink in an environment of its own, for BENCH="nexmark"
	rm -rf .venv-flink
	$(BIN)/python -m venv --without-pip .venv-flink
	$(BIN)/python -m pip --python .venv-flink/bin/python install -q --require-hashes -r requirements/build.txt
	.venv-flink/bin/python -m pip install -q --no-build-isolation --require-hashes -r requirements/flink.txt

bench-docs: env  ## write the pages about benchmarks, their pictures and the README's figures from bench/results
	$(BIN)/python -m bench.pages

.PHONY: help docs env release java lock proto clean demo demo-crash demo-kafka doctor quick test check test-unit test-crash mutants test-s3 test-conformance test-spark test-kafka test-cluster test-browser test-docs test-azure test-versions test-kills soak-cluster test-long bench bench-docs flink-env
