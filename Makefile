# Every target bootstraps what it needs: python3 (3.11 or newer), pip and git are enough.
PYTHON ?= python3
UV_VERSION := 0.13.9
UV := PYTHONPATH=.uv $(PYTHON) -m uv
RUN := .venv/bin
STATE ?= .state
AREA ?= quota
SECONDS ?= 60
SEED ?= 1
EXAMPLES ?= 45

# Tests start Python hundreds of times: it shall keep what it compiled, also where the machine says
# that it should not.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up test test-long e2e test-pg15 check format bench bench-openb bench-churn bench-mig bench-decision bench-reports contract torture clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# uv goes into a folder of its own, so neither the system's nor the user's packages change.
.uv/.$(UV_VERSION):
	@$(PYTHON) -c 'import sys; sys.exit("Apportion needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	@rm -rf .uv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-warn-conflicts --target .uv uv==$(UV_VERSION)
	@touch $@

.venv/.run: .uv/.$(UV_VERSION) pyproject.toml uv.lock
	$(UV) sync --frozen --quiet --no-default-groups --inexact --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	@touch $@

.venv/.dev: .venv/.run
	$(UV) sync --frozen --quiet --all-groups
	@touch $@

up: .venv/.run ## start the server with its demo: a real fleet and its real tasks
	$(RUN)/apportion up --state $(STATE)

test: .venv/.dev ## run the tests (real PostgreSQL, real processes)
	$(RUN)/python -m pytest -n 2 --dist worksteal -m "not slow"

e2e: .venv/.dev ## run what needs whole processes: servers and agents that are killed at every step
	$(RUN)/python -m pytest -m "" tests/e2e tests/agent

test-long: .venv/.dev ## run the tests with a thousand examples of each property, and what is slow: hours
	APPORTION_HYPOTHESIS=thorough $(RUN)/python -m pytest -n 2 --dist worksteal --timeout 7200 -m ""

test-pg15: .venv/.dev ## run every statement on the oldest PostgreSQL that is supported, Debian's 15
	APPORTION_TEST_PG_BIN=/usr/lib/postgresql/15/bin $(RUN)/python -m pytest -n 2 --dist worksteal \
	  -m "oldest and not slow" --every-query tests/store tests/services tests/api

check: .venv/.dev ## lint, format, types, layers
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/basedpyright
	$(RUN)/python tools/unasync.py --check
	$(RUN)/lint-imports

format: .venv/.dev ## format and apply safe fixes
	$(RUN)/python tools/unasync.py
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

bench: .venv/.dev ## measure; results in bench/results
	$(RUN)/python -m bench

bench-openb: .venv/.dev ## replay the public fragmentation experiment; QUICK=1 for a look
bench-churn: .venv/.dev ## replay the public trace as requests that come and go; QUICK=1
bench-mig: .venv/.dev ## replay MIG cut on demand beside the rules in use; QUICK=1
bench-decision: .venv/.dev ## what a decision costs up to 1,000,000 GPUs; QUICK=1
bench-durable: .venv/.dev ## durable reservations a second through HTTP; QUICK=1
bench-reports: .venv/.dev ## what the signed reports of 1,000 nodes cost; QUICK=1
bench-openb bench-churn bench-mig bench-decision bench-durable bench-reports:
	$(RUN)/python -m bench $@

contract: .venv/.dev ## hold the OpenAPI document against a real server, at least 5,000 cases
	$(RUN)/python -m contract --examples $(EXAMPLES) --seed $(SEED)

torture: .venv/.dev ## attack one part, AREA=quota or placement, while what it runs on is killed: SECONDS=60 SEED=1 [BREAK=1]
	$(RUN)/python -m torture $(AREA) --seconds $(SECONDS) --seed $(SEED) $(if $(BREAK),--break)

clean: ## remove what the other targets made
	rm -rf .venv .uv .ruff_cache .pytest_cache .hypothesis .import_linter_cache
