# `make help` lists what there is. Everything is installed below .venv and .cache; nothing else on the machine changes,
# except that `make test` as root installs the Debian packages that its tests need (scripts/install-test-packages).

VENV ?= .venv
BIN := $(VENV)/bin
DEMO_GUARD ?= on
DEMO_ARGS ?=
TEST_ARGS ?=
export PATH := $(CURDIR)/.cache/test-tools/usr/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## a real model server under load, and the guard at work (DEMO_GUARD=off: what happens without it)
	@$(BIN)/slmguard demo --guard $(DEMO_GUARD) $(DEMO_ARGS)

test: lint ## all checks and all tests, with everything they need installed
	@scripts/install-test-packages
	@$(BIN)/python -m slmguard.demo.model >/dev/null || true
	$(BIN)/python -m pytest $(TEST_ARGS)

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev ## put the code into its one format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.dev ## the benchmarks, one after the other
	@for bench in benchmarks/*.py; do echo "== $$bench"; $(BIN)/python "$$bench" || exit 1; done

lock: ## write requirements/*.lock anew (needs uv)
	scripts/lock

clean: ## remove what make has made (the model in ~/.cache/slmguard stays)
	rm -rf $(VENV) .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find slmguard tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.dev: requirements/dev.lock pyproject.toml
	@scripts/make-venv $(VENV) requirements/dev.lock
	@touch $@ $(VENV)/.demo

$(VENV)/.demo: requirements/demo.lock pyproject.toml
	@scripts/make-venv $(VENV) requirements/demo.lock
	@touch $@
