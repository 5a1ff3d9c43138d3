# The two commands of the README (demo, test), the site (docs), the checks (lint), the timings
# (bench, bench-gpu), and clean; all but bench-gpu share one .venv.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# Editable, so that a change in src/ needs no new install.
INSTALL := $(PIP) install -c constraints.txt -e
PYTEST_ARGS ?=

# The first interpreter that is new enough and can make a virtual environment. Asking it to run
# matters: a version manager's stand-in may exist on the PATH and still refuse to start.
PROBE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c '$(PROBE)' 2>/dev/null && echo $$python && break; done)

.PHONY: demo test test-clip docs lint bench bench-gpu clean

# PHOTOS=my/folder (one folder a class) instead of the digits that come with the installation.
demo: $(VENV)/.base
	$(BIN)/python -m gpcache demo $(PHOTOS)

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

# The open_clip encoders need torchvision, which does not import beside a CPU build of torch.
test-clip: $(VENV)/.test
	.ci/open_clip

# Writes docs/_build/html. A warning, a broken link, or a page that loads from elsewhere is an error.
docs: $(VENV)/.docs
	rm -rf docs/_build docs/gallery
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# How near every hot path comes to the limit of this machine; writes docs/results/roofline.md.
bench: $(VENV)/.test
	$(BIN)/python benchmarks/roofline.py

# A machine with a GPU has a torch of its own, which an environment would hide.
bench-gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/roofline.py --device cuda

clean:
	rm -rf $(VENV) .venv-clip gpcache-demo build dist docs/_build docs/gallery docs/reference/generated .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# Stamps: each install also serves the smaller ones, so it marks them as done.
$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) ".[lite,report]"
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) ".[test]"
	@touch $(VENV)/.base $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) ".[dev]"
	@touch $(VENV)/.base $(VENV)/.test $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) ".[docs]"
	@touch $(VENV)/.base $@

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "gpcache needs Python 3.11 or newer with venv: none found."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@
