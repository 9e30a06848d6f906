# casque: everything starts here. `make run` and `make test` set up what they need themselves.
.DEFAULT_GOAL := help
.PHONY: help setup run test lint types layers pytest soak proof newcomer fuzz chaos failover bench sim model proto reference docs docs-serve browser lock sbom matrix matrix-spark dist clean

# Many commands and tests start Python: without stored bytecode each of them compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python

help: ## Show what there is to run
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: ## Create .venv with the locked dependencies, and the Azure test server
	@bash scripts/setup

run: ## The main job: a broker, workers, a burst of jobs, a worker killed, a live view, the archive, and a report of it
	@bash scripts/setup run
	@$(PY) -m casque.cli demo --data ./data

test: ## Everything that has to hold: ruff, shellcheck, mypy, import-linter, the documentation, pytest
	@$(MAKE) --no-print-directory --jobs 2 setup browser
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types layers docs
	@$(MAKE) --no-print-directory pytest

lint: setup
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && $(PY) scripts/words.py
	@.venv/bin/shellcheck --external-sources $$(grep --directories=skip -lE '^#!.*bash|shell=bash' scripts/* .ci/*)

types: setup
	@.venv/bin/mypy

layers: setup
	@.venv/bin/lint-imports

pytest: setup browser
	@bash scripts/tests

KILLS ?= 2000
soak: setup ## The kill test for longer: make soak KILLS=5000
	@CASQUE_KILLS=$(KILLS) .venv/bin/pytest --timeout 7200 tests/acceptance/test_processes.py

proof: setup ## The tests that take long: drivers, executors and pipelines killed, Connect servers, clusters
	@bash scripts/browser
	@CASQUE_LONG=1 .venv/bin/pytest -n 2 --dist loadgroup -m long

newcomer: setup ## The documentation, followed page by page with the built wheel in clean environments
	@CASQUE_LONG=1 .venv/bin/pytest -n 2 tests/acceptance/test_newcomer.py

FUZZ ?= 20000
fuzz: setup ## Damaged packets, requests and stored objects, for long: make fuzz FUZZ=100000 (examples of each test)
	@CASQUE_FUZZ=$(FUZZ) .venv/bin/pytest --timeout 0 tests/fuzz

MINUTES ?= 1
STORE ?= all
WAY ?= all
chaos: setup ## Processes killed, frozen, stopped and their clocks shifted; every call checked: make chaos MINUTES=10 STORE=file WAY=ring
	@$(PY) -m simulation.chaos --minutes $(MINUTES) --store $(STORE) --way $(WAY) $(if $(SEED),--seed $(SEED))

FAILOVERS ?= 5
failover: setup ## How long until the next leader answers, with the default timing: make failover FAILOVERS=20
	@$(PY) -m simulation.chaos --failovers $(FAILOVERS) --heartbeat 2 --lease 8 --store $(STORE)

bench: setup ## Speed, side by side with jqueue; prints the tables of benchmarks/README.md
	@$(PY) -m benchmarks

SEEDS ?= 1000
START ?= 1000000
LAYOUT ?= all
PROFILE ?= all
sim: setup ## Simulated worlds full of faults: make sim SEEDS=20000 LAYOUT=ring PROFILE=brutal START=7
	@$(PY) -m simulation.world --seeds $(SEEDS) --start $(START) --layout $(LAYOUT) --profile $(PROFILE)

browser: ## Chromium, for the test that opens a report in it
	@bash scripts/browser

SIZE ?= medium
model: setup ## The exhaustive model of the log protocol: make model SIZE=large
	@$(PY) -m specs --size $(SIZE)

proto: setup ## Write the Python code of the gRPC messages anew from proto/
	@bash scripts/proto

reference: setup ## Write anew what follows from the code: pages of the reference, and the blocking queue
	@$(PY) scripts/sync_queue.py
	@$(PY) scripts/reference.py

docs: ## Build the documentation into site/, strictly: links, anchors, spelling (SERVE=1 serves it on 127.0.0.1:8000)
	@bash scripts/docs $(if $(SERVE),serve,build)

docs-serve: ## Serve the documentation on 127.0.0.1:8000, and rebuild it when a page changes
	@bash scripts/docs serve

sbom: setup ## The list of parts of a release (CycloneDX), in dist/: make sbom EXTRAS=server,spark-java
	@$(PY) scripts/sbom.py $(EXTRAS)

lock: ## Write the lock files in requirements/ anew from pyproject.toml
	@bash scripts/lock

PYTHONS ?= 3.11 3.12 3.13 3.14
matrix: ## The quick tests on every supported Python that is installed: make matrix PYTHONS=3.13
	@bash scripts/matrix python $(PYTHONS)

SPARK ?= 4.1 4.2 4.3
matrix-spark: ## The Spark tests on other versions of PySpark: make matrix-spark SPARK=4.1
	@bash scripts/matrix spark $(SPARK)

dist: setup ## The files of a release: packages, hashes, list of parts
	@$(PY) scripts/dist.py

clean: ## Remove what setup and the runs created
	rm -rf .venv .venv-jqueue .venv-django .venv-docs .venv-deploy .venv-field site .cache dist data data-warehouse tools/azurite/node_modules .mypy_cache .ruff_cache .hypothesis
