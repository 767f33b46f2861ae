# What a developer and CI run. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Only used to create the environment; everything after that runs the environment's own Python.
PYTHON ?= python3
# Run with --version, because a version manager may leave a command that only complains.
UV := $(shell uv --version >/dev/null 2>&1 && command -v uv)

# A folder that does not exist yet is left out, so that no tool fails on it.
CODE := $(wildcard src tests bench dev examples)
UNIT_TESTS := $(wildcard tests/unit tests/contract tests/property bench/tests)
# Tests that need a server, Java, or more than two seconds: `make test`, not `make check`.
NOT_QUICK := spark or connect or stack or slow_unit
# What neither runs: each has a target of its own.
NOT_TEST := crash or slow or bench
NOT_UNIT := $(NOT_QUICK) or $(NOT_TEST)
# How many tests run in parallel, each in its own process. A file's tests stay together:
# they share servers and tables. tests/conftest.py puts the files in order, the longest first.
LANES := 2
IN_LANES := -n $(LANES) --dist loadfile --no-loadscope-reorder
# A folder for how long each test of `make check` and `make test` took, as JUnit writes it.
JUNIT ?=

# Spark starts its Python workers by this name; any other interpreter lacks our packages. The
# workers load test helpers by import, so the repository's root must be on their path. Nothing
# listens on an address that other machines can reach.
PYSPARK := PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(BIN)/python \
	PYTHONPATH=$(CURDIR) SPARK_LOCAL_IP=127.0.0.1

# Without compiled files each process compiles all that it imports, and pytest all tests: to collect
# those of `make check` took 23 CPU-s, and 14 with them. `make clean` removes them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup lock simulate fuzz soak guards mutate check check-format check-lint check-types \
	check-imports check-workflows check-unit format stack stack-stop example-envs test slow hostile \
	emulators nightly crash bench plots docs test-matrix test-lowest site public-api licences wheel \
	release-check clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' \
		| awk -F'\t' '{ printf "  make %-15s %s\n", $$1, $$2 }'

# ---- the environment --------------------------------------------------------------------------
setup: $(VENV)/.setup-done ## Create .venv, or bring it up to date

# The stamp is newer than its sources as long as nothing changed: then this is free.
$(VENV)/.setup-done: requirements/dev.txt pyproject.toml
ifneq ($(UV),)
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
else
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
endif
	@touch $@

COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links

lock: ## Make dev.txt, release.txt and lowest.txt in requirements/ (needs uv)
	$(COMPILE) --python-version 3.11 requirements/dev.in -o requirements/dev.txt
	$(COMPILE) --python-version 3.11 requirements/release.in -o requirements/release.txt
	$(COMPILE) --python-version 3.10 --resolution lowest-direct --all-extras \
		pyproject.toml requirements/lowest.in -o requirements/lowest.txt

# ---- checks -----------------------------------------------------------------------------------
check: setup ## Format, lint, types, import rules, unit tests: no server, no Spark, two minutes
	@$(MAKE) --no-print-directory -j2 --keep-going --output-sync=target \
		check-unit check-types check-format check-lint check-imports
	@echo "check: all passed"

check-format:
	$(BIN)/ruff format --check $(CODE)

check-lint:
	$(BIN)/ruff check $(CODE)

check-types:
	$(BIN)/mypy $(CODE)

check-imports:
	$(BIN)/lint-imports

check-workflows: setup ## Lint .github/workflows with actionlint (needs go) and zizmor
	dev/check_workflows.sh

# In parallel with the others, so that both cores stay busy.
check-unit:
	$(BIN)/python -m pytest -q -p no:cacheprovider -n $(LANES) --dist worksteal \
		-m "not ($(NOT_UNIT))" $(if $(JUNIT),--junitxml=$(JUNIT)/check.xml) $(UNIT_TESTS)

format: setup ## Rewrite the code in the house format
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# ---- tests ------------------------------------------------------------------------------------
stack: setup ## Install and start the test servers; WITH="nessie minio" adds these two
	dev/stack/install.sh $(WITH)
	$(BIN)/python dev/stack/stack.py start $(foreach part,$(WITH),--with $(part))

example-envs: setup ## Install what the tests of some examples need: Airflow, Dagster, a model (2 GB)
	dev/example_envs.sh

stack-stop: ## Stop the test servers
	$(BIN)/python dev/stack/stack.py stop

test: setup ## What `make check` leaves out, except tests that crash processes or take over a minute
	$(PYSPARK) $(BIN)/python -m pytest --durations=25 $(IN_LANES) \
		-m "($(NOT_QUICK)) and not ($(NOT_TEST))" $(if $(JUNIT),--junitxml=$(JUNIT)/test.xml) $(ARGS)

crash: setup ## Kill drivers and workers at named points, run again, compare
	@if compgen -G 'tests/crash/test_*.py' >/dev/null; then \
		$(PYSPARK) $(BIN)/python -m pytest -n $(LANES) --dist worksteal -m crash tests/crash $(ARGS); \
	else \
		echo "crash: nothing was run: tests/crash has no tests yet"; \
	fi

slow: setup ## Tests that take over a minute each, and all of which a third is drawn (need the stack and `make example-envs`)
	HOLDFAST_ALL=1 $(PYSPARK) $(BIN)/python -m pytest -m "(slow or sampled) and not (crash or bench)" $(ARGS)

hostile: setup ## What other writers can do to a table, on every catalog; CI draws one for each
	HOLDFAST_CATALOGS=all $(PYSPARK) $(BIN)/python -m pytest $(IN_LANES) \
		-m hostile $(ARGS)

emulators: setup ## Run on emulators of GCS, Azure and AWS Glue (needs go, npm); writes docs/versions.md
	dev/emulators.sh
	HOLDFAST_WRITE_VERSIONS=1 HOLDFAST_REQUIRE_STACK=1 \
		$(BIN)/python -m pytest -m emulator tests/emulators $(ARGS)

nightly: ## What CI samples, in full: guards, crashes, models, histories, versions, hostile tables
	dev/nightly.sh $(STEPS)

guards: setup ## Remove each guard of the protocol, and show that its test fails
	$(BIN)/python -m tests.guards $(ARGS)

mutate: setup ## Draw N bugs at random and show those that no test of `make check` notices: SEED=…
	$(BIN)/python -m tests.mutants --without "$(NOT_UNIT)" --count $(or $(N),20) \
		$(if $(SEED),--seed $(SEED)) $(ARGS) $(UNIT_TESTS)

soak: setup ## Run jobs for MINUTES while drivers, executors and servers are killed (needs the stack)
	$(PYSPARK) $(BIN)/python -m tests.crash.soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

simulate: setup ## Search N histories of the protocol for a violation: make simulate N=20000
	$(BIN)/python -m tests.simulation $(or $(N),20000) $(ARGS)

fuzz: setup ## Damage ledgers for MINUTES, run every command and a start on them, check the results: SEED=…
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED)) $(ARGS)

test-matrix: setup ## Tests with Spark and no server on each PySpark and Python; writes their table (needs uv)
	$(BIN)/python -m dev.version_matrix $(ARGS)

test-lowest: setup ## Unit tests and some with Spark on the lowest versions that are allowed
	NOT_UNIT="$(NOT_UNIT)" dev/test_lowest.sh

bench: setup ## Run one benchmark: make bench NAME=…
	$(PYSPARK) $(BIN)/python -m bench $(NAME) $(ARGS)

plots: setup ## Draw the stored benchmark results for the documentation
	$(BIN)/python -m bench.plots

# ---- what is shipped --------------------------------------------------------------------------
docs: setup ## Build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

site: setup ## Build the documentation as it is published: a sample report, the notebook, the plots
	$(PYSPARK) $(BIN)/python -m dev.site $(ARGS)

public-api: setup ## Accept a change of the public API: write tests/public_api.txt
	$(BIN)/python -m dev.public_api

licences: setup ## Write docs/explanation/licences.md from what is installed
	$(BIN)/python -m dev.licences

wheel: setup ## Build the wheel and the source archive into dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

release-check: setup ## Build, install and try what is released, as its users will: ARGS="--help"
	$(BIN)/python -m dev.release_check $(ARGS)

clean: ## Remove what builds and tests leave behind; keeps .venv
	rm -rf build dist release site spark-warehouse metastore_db derby.log \
		.mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
