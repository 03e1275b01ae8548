# Tidemill's commands. `make install` needs Python 3.11 to 3.13 and the network once; everything after it runs offline.
#
#   PYTHON       the interpreter that makes .venv           (default: the first suitable python3 on the path)
#   TORCH_INDEX  an index to take torch from, for example   (default: empty, whatever pip's own settings say; on Linux
#                https://download.pytorch.org/whl/cpu        PyPI's torch brings CUDA along, the CPU index does not)
#   ARGS         passed on to `tidemill up` or to pytest    (make train ARGS="--set schedule.kind=sync")

SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help install train test test-slow test-gpu test-docker test-hosts fuzz chaos check format clean

PYTHON      ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
                 $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
TORCH_INDEX ?=
ARGS        ?=
PIPELINE    ?= compose/pipelines/calculator.toml
WORKERS     ?= 2
SECONDS     ?= 60

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CODE   := $(wildcard schemas broker stages tools)
PURE   := $(wildcard tests/test_layers.py tests/schemas tests/broker/core tests/broker/policy tests/tools/sim)
OTHERS := not slow and not gpu and not docker and not sglang and not hosts

# One compute thread a process: two OpenMP threads on two busy cores ran small products 140 times slower than one.
export OMP_NUM_THREADS := 1
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv and install Tidemill into it, pinned by constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Tidemill needs Python 3.11, 3.12 or 3.13, and found none on the path." \
	  "Install one, or name it: make install PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "Tidemill needs Python 3.11, 3.12 or 3.13, but $(PYTHON) is another: $$($(PYTHON) --version 2>&1)." >&2; exit 2; }
	@test -x $(BIN)/python || { echo "making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing Tidemill and its dependencies into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt -e '.[dev]'
	@touch $@

train: $(STAMP)  ## train the calculator agent on this machine (Ctrl-C ends it cleanly)
	@exec $(BIN)/tidemill up $(PIPELINE) $(ARGS)

test: $(STAMP)  ## all tests that need nothing but this machine (under 15 minutes on 2 cores)
	@$(PYTEST) -m "$(OTHERS)" $(ARGS)

test-slow: $(STAMP)  ## the long tests: whole runs, seeds, quality of the warm start
	@$(PYTEST) -n 0 -m "slow and not gpu and not docker and not sglang and not hosts" $(ARGS)

test-gpu: $(STAMP)  ## what needs a CUDA device
	@$(PYTEST) -n 0 -m gpu $(ARGS)

test-docker: $(STAMP)  ## the image and the whole stack on a Docker engine of its own (root, 5 GB; 3 to 10 minutes)
	@$(BIN)/python -c 'import docker' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'docker>=7.1'
	@$(BIN)/python -m pytest -n 0 -rs -m docker tests/docker tests/docs $(ARGS)

test-hosts: $(STAMP)  ## real training on hosts in network namespaces: cuts, deaths, late hosts, clocks (root; 5 to 15 minutes)
	@$(BIN)/python -m pytest -n 0 -rs -m hosts tests/hosts tests/docs $(ARGS)

fuzz: $(STAMP)  ## coverage-guided fuzzing of the decoder (SECONDS=60); installs atheris into .venv the first time
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'atheris>=3.0'
	@$(BIN)/python -m tests.fuzz.decoder $(SECONDS)

chaos: $(STAMP)  ## real training whose processes are killed and frozen (ARGS="--seed 11 --runs 3 --minutes 2")
	@$(BIN)/python -m tests.chaos $(ARGS)

check: $(STAMP)  ## lint, format, types, import rules and pure tests (under 90 seconds)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "some files are not formatted: run make format" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary $(CODE)
	@$(PYTEST) -q -m "$(OTHERS)" $(PURE) $(ARGS)

format: $(STAMP)  ## format the code and mend what ruff can mend
	@$(BIN)/ruff check --quiet --fix .; $(BIN)/ruff format --quiet .

clean:  ## remove the environment and every cache; runs/ stays
	@rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find $(CODE) tests -name __pycache__ -type d -prune -exec rm -rf {} +
