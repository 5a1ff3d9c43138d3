# demo       the main job on pictures; PHOTOS=my/folder takes yours
# test       the tests for a change: fast, with real files and servers (3 minutes on two cores)
# test-all   these and the slow ones: Ray, the browser, kills, many fits
# test-clip  the open_clip encoders; test-oldest: the oldest packages that pyproject.toml allows
# coverage   the line coverage of test and of test-all
# docs       the documentation site, in docs/_build/html
# lint       ruff, mypy, the import contract
# package    builds the wheel, checks it, and runs it in a bare environment
# licences   writes docs/licences.md
# results    the pages in docs/results, from their rows; RUN=1 runs what is missing
# bench, bench-gpu   timings; clean removes what all of these leave behind
# All but bench-gpu share one .venv.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q install -c constraints.txt
# torch by pip: where the index has a build for CPUs alone, that one, not gigabytes of CUDA. The rest
# by uv, which is several times as fast, or by pip, where only pip's settings name the index.
# Editable, so that a change in src/ needs no new install.
INSTALL = $(PIP) uv torch && { $(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt \
	-e ".[$(EXTRAS)]" || $(PIP) -e ".[$(EXTRAS)]"; }
PYTEST_ARGS ?=
# Compiled once, not in each of the many processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE

# The first interpreter that is new enough and can make a virtual environment. Asking it to run
# matters: a version manager's stand-in may exist on the PATH and still refuse to start.
PROBE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c '$(PROBE)' 2>/dev/null && echo $$python && break; done)

.PHONY: demo test test-all test-clip test-oldest coverage docs lint package licences bench bench-gpu results clean

# PHOTOS=my/folder (one folder for each class) instead of pictures that a program draws.
demo: $(VENV)/.base
	$(BIN)/python -m gpcache demo $(PHOTOS)

# Work stealing: a long test at the end does not leave a core idle. One thread each: the matrices are
# small, and threads of several processes only wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal --durations=20
# Slow tests often wait for Ray, a browser or a time limit: one process more than there are cores.
CORES := $(shell getconf _NPROCESSORS_ONLN)

test: $(VENV)/.test
	$(PYTEST) -n auto -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.test
	$(PYTEST) -n $$(($(CORES) + 1)) $(PYTEST_ARGS)

coverage: $(VENV)/.test
	$(PYTEST) -n auto -q -m "not slow" --cov --cov-report=term:skip-covered
	$(PYTEST) -n auto -q -m slow --cov --cov-append --cov-report=term:skip-covered

# The open_clip encoders need torchvision, which does not import beside a CPU build of torch.
test-clip: $(VENV)/.test
	.ci/open_clip

test-oldest: $(VENV)/.test
	.ci/oldest

package: $(VENV)/.dev
	.ci/package

licences: $(VENV)/.test
	$(BIN)/python .ci/licences.py

# Writes docs/_build/html. A warning, a broken link, or a page that loads from elsewhere is an error.
# SPHINX_ARGS="-D plot_gallery=0" does not run the examples, so their pages lack the outputs.
SPHINX_ARGS ?=
docs: $(VENV)/.docs
	rm -rf docs/_build docs/gallery
	$(BIN)/python -m sphinx -W --keep-going -q -b html $(SPHINX_ARGS) docs docs/_build/html

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# How near every hot path comes to the limit of this machine; writes a section of docs/results/speed.md.
bench: $(VENV)/.test
	$(BIN)/python benchmarks/roofline.py

# A machine with a GPU has a torch of its own, which an environment would hide.
bench-gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/roofline.py --device cuda

# The pages in docs/results and the table of the README, from the rows. RUN=1 first runs what is
# missing, and goes on where it was stopped; ONLY="headline" names specs, JOBS=4 the processes.
JOBS ?= 1
results: $(VENV)/.test
	$(if $(RUN),$(BIN)/python benchmarks/prepare_data.py)
	$(BIN)/python benchmarks/results.py $(if $(RUN),--run --jobs $(JOBS) $(if $(ONLY),--only $(ONLY)))

clean:
	rm -rf $(VENV) .venv-clip .venv-oldest gpcache-demo build dist docs/_build docs/gallery docs/reference/generated .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# Stamps: each install also serves the smaller ones, so it marks them as done.
$(VENV)/.base: EXTRAS := lite,report,serve
$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL)
	@touch $@

$(VENV)/.test: EXTRAS := test
$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL)
	@touch $(VENV)/.base $@

$(VENV)/.dev: EXTRAS := dev
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL)
	@touch $(VENV)/.base $(VENV)/.test $@

$(VENV)/.docs: EXTRAS := docs
$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL)
	@touch $(VENV)/.base $@

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "gpcache needs Python 3.11 or newer with venv: none found."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@
