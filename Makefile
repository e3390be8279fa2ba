# `make demo` and `make test` do all the set-up on a machine with Python 3.11 or newer.
# Another Python: make test PYTHON=/path/to/python3.12

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
WORKERS ?= 2
INSTALLED := .venv/installed
GPU_COMPILER := .venv/gpu-compiler

.PHONY: help install gpu-compiler demo test test-all gpu-test wheel-test lint lock

help:
	@echo 'make demo      text to a fine-tuned classifier on a corpus that every machine has, in minutes'
	@echo 'make test      the fast tests'
	@echo 'make test-all  the slow ones too, and those that compare with other libraries'
	@echo 'make gpu-test  compiles programs for GPUs that are not there'
	@echo 'make wheel-test  the wheel: built, installed and run in an empty directory'
	@echo 'make lint      ruff, and the import direction'
	@echo 'make install   .venv with the versions of requirements.lock, and bert-jax in it'
	@echo 'make gpu-compiler  XLA for GPUs that are not there, 182 MB, so that tests can compile for them'
	@echo 'make lock      writes requirements.lock from what .venv has'

install: $(INSTALLED)

# The stamp is written last: an installation that was cut off is made again.
$(INSTALLED): setup.py requirements.lock
	@test -n '$(PYTHON)' || { echo 'no Python 3.11 or newer found; name one: make PYTHON=/path/to/python'; exit 1; }
	$(PYTHON) -m venv .venv || { echo 'Debian and Ubuntu need: apt-get install python3-venv'; exit 1; }
	@echo 'installing the versions of requirements.lock into .venv, some 1.5 GB: minutes'
	@# The lock is tested on Python 3.11. Where it does not install, newer Pythons take the ranges of setup.py.
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q -r requirements.lock || \
		{ $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' && \
		  PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q setuptools -e '.[dev]'; }
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q --no-deps --no-build-isolation -e .
	touch $@

# Beside the environment, not in it, so that every other test runs as it does where there is no such compiler.
# It has to be of jax's version and needs none of CUDA's libraries.
gpu-compiler: $(GPU_COMPILER)/installed

$(GPU_COMPILER)/installed: $(INSTALLED)
	rm -rf $(GPU_COMPILER)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q --no-deps --target $(GPU_COMPILER) \
		$$($(BIN)/python -c 'import jax; print(*(f"jax-cuda12-{part}=={jax.__version__}" for part in ("plugin", "pjrt")))')
	touch $@

demo: $(INSTALLED)
	$(BIN)/bert-jax demo

test: $(INSTALLED)
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile -m 'not slow and not peer'

test-all: $(INSTALLED)
	$(BIN)/pytest -q

gpu-test: $(GPU_COMPILER)/installed
	$(BIN)/pytest -q tests/estimate/test_gpu_compilation.py

wheel-test: $(INSTALLED)
	.ci/wheel-test $(BIN)/python

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

lock: $(INSTALLED)
	{ echo '# The versions that are tested, on Python 3.11 and CPU. `make lock` writes this file from .venv.'; \
	  $(BIN)/pip freeze --all --exclude bert-jax --exclude pip --exclude wheel; } > requirements.lock.new
	mv requirements.lock.new requirements.lock
	touch $(INSTALLED)
