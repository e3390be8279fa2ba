# `make demo` and `make test` do all the set-up on a machine with Python 3.11 or newer: 3.13 where it is found.
# Another Python: make test PYTHON=/path/to/python3.12
# An environment beside the first one: make test PYTHON=python3.13 VENV=.venv-3.13

# Else, where it is set, each process of the tests compiles all that it imports: 5 seconds and more.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
INSTALLED := $(VENV)/installed
PYTEST := $(BIN)/pytest -q -n $(WORKERS) --dist loadfile $(if $(PART),--long-part=$(PART))
GPU_COMPILER := $(VENV)/gpu-compiler
TPU_COMPILER := $(VENV)/tpu-compiler

# Without PYTHON, an environment that exists keeps its Python.
ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell for python in $(BIN)/python python3.13 python3.11 python3.12 python3.14 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
endif
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VERSION := $(if $(PYTHON),$(call VERSION_OF,$(PYTHON)))

# The lock of this Python. Other Pythons than 3.11 and 3.13 try the newest one before the ranges of setup.py.
LOCK_3.11 := requirements.lock
NEWEST_LOCK := requirements-3.13.lock
OWN_LOCK := $(or $(LOCK_$(VERSION)),requirements-$(VERSION).lock)
LOCK := $(or $(wildcard $(OWN_LOCK)),$(NEWEST_LOCK))

# An environment of another Python than the one that was asked for is made again.
ifneq ($(wildcard $(INSTALLED)),)
ifneq ($(call VERSION_OF,$(BIN)/python),$(VERSION))
.PHONY: $(INSTALLED)
endif
endif

.PHONY: help install gpu-compiler tpu-compiler demo test test-long test-all test-sample gpu-test tpu-test wheel-test lint docs config-reference lock

help:
	@echo 'make demo         text to a fine-tuned model on a corpus that every machine has, in minutes'
	@echo 'make test         the fast tests'
	@echo 'make test-long    the others that every change has to pass: each takes seconds; or make test LONG=yes for both;'
	@echo '                  with PART=1/4 the first of four parts of them'
	@echo 'make test-all     all of them, with the slow ones and those that compare with other libraries'
	@echo 'make test-sample  a few minutes of the tests, for a second Python'
	@echo 'make gpu-test     compiles programs for GPUs that are not there'
	@echo 'make tpu-test     compiles programs for every TPU, without one, with the libtpu that jax asks for'
	@echo 'make wheel-test   the wheel: built, installed and run in an empty directory'
	@echo 'make lint         ruff, codespell, import-linter and mypy'
	@echo 'make docs         the pages of docs/ and the API reference, as HTML in site/'
	@echo 'make install      $(VENV) with the versions of a lock, and bert-jax in it'
	@echo 'make gpu-compiler XLA for GPUs that are not there, 182 MB, so that tests can compile for them'
	@echo 'make tpu-compiler libtpu, 140 MB, beside the environment'
	@echo 'make config-reference  the tables of docs/config.md, from the declarations of the fields'
	@echo 'make lock         writes the lock of this Python from what $(VENV) has'

install: $(INSTALLED)

# The stamp is written last: an installation that was cut off is made again.
$(INSTALLED): setup.py $(LOCK)
	@test -n '$(VERSION)' || { echo 'no Python 3.11 or newer found; name one: make PYTHON=/path/to/python'; exit 1; }
	$(PYTHON) -m venv $(if $(filter $(BIN)/%,$(PYTHON)),,--clear) $(VENV) || \
		{ echo 'Debian and Ubuntu need: apt-get install python3-venv'; exit 1; }
	@echo 'installing the versions of $(LOCK) into $(VENV), some 1.5 GB: minutes'
	@# A Python without a lock of its own takes the ranges of setup.py where the newest lock does not install.
	@# Python compiles the modules that are imported; to compile all of them takes a third of the installation.
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q --no-compile -r $(LOCK) || \
		{ test '$(LOCK)' != '$(OWN_LOCK)' && PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q --no-compile setuptools -e '.[dev]'; }
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	touch $@

# Beside the environment, not in it, so that every other test runs as it does where there is no such compiler.
# It has to be of jax's version and needs none of CUDA's libraries.
gpu-compiler: $(GPU_COMPILER)/installed

$(GPU_COMPILER)/installed: $(INSTALLED)
	rm -rf $(GPU_COMPILER)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q --no-compile --no-deps --target $(GPU_COMPILER) \
		$$($(BIN)/python -c 'import jax; print(*(f"jax-cuda12-{part}=={jax.__version__}" for part in ("plugin", "pjrt")))')
	touch $@

# What `pip install '.[tpu]'` brings for this jax.
tpu-compiler: $(TPU_COMPILER)/installed

$(TPU_COMPILER)/installed: $(INSTALLED)
	rm -rf $(TPU_COMPILER)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install -q --no-compile --no-deps --target $(TPU_COMPILER) \
		"$$($(BIN)/python -c 'import importlib.metadata as m, re; print(re.search("libtpu[^; ]*", str(m.requires("jax")))[0])')"
	touch $@

demo: $(INSTALLED)
	$(BIN)/bert-jax demo

# In the order of the names: by default, files of few tests come last, and the longest are among them.
# With LONG=yes those of `make test-long` too: what the tests of a file share is made once then.
test: $(INSTALLED)
	$(PYTEST) --no-loadscope-reorder -m '$(if $(LONG),,not long and )not slow and not peer'

test-long: $(INSTALLED)
	$(PYTEST) -m 'long and not slow and not peer'

# Suites that touch every library: jax, flax, orbax, optax, numpy, tokenizers and what single features need.
SAMPLE := tests/checkpoint tests/convert/formats tests/convert/families/test_goldens.py tests/data \
	tests/data_pipelines/stages tests/kernels/test_dispatch.py tests/models tests/parallel/test_sharding.py \
	tests/plots tests/tokenization tests/training/test_optimizers.py tests/training/test_step.py tests/test_extras.py
test-sample: $(INSTALLED)
	$(PYTEST) -m 'not long and not slow and not peer and not multiprocess' $(SAMPLE)

test-all: $(INSTALLED)
	$(BIN)/pytest -q

gpu-test: $(GPU_COMPILER)/installed
	$(BIN)/pytest -q tests/estimate/test_gpu_compilation.py

tpu-test: $(TPU_COMPILER)/installed
	$(BIN)/pytest -q tests/estimate/test_tpu_compilation.py

wheel-test: $(INSTALLED)
	.ci/wheel-test $(BIN)/python

# What takes seconds comes first.
lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	.ci/large-files
	$(BIN)/python benchmarks/lines.py --check
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

config-reference: $(INSTALLED)
	$(BIN)/python tests/support/config_reference.py docs/config.md

lock: $(INSTALLED)
	{ echo '# The versions that are tested, on Python $(VERSION) and CPU. `make lock` writes this file from an environment.'; \
	  $(BIN)/pip freeze --all --exclude bert-jax --exclude pip --exclude wheel; } > $(OWN_LOCK).new
	mv $(OWN_LOCK).new $(OWN_LOCK)
	touch $(INSTALLED)
