# Everything here works on a machine with Python >= 3.11 and nothing else.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
WORKERS ?= auto
MINUTES ?= 25
PER_GPU ?= 6

VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dmc,tensorboard,video,hub,onnx,ray,sb3,docs,dev
INSTALLED := $(VENV)/.installed
UNFINISHED := $(VENV)/.unfinished
RENDERING := $(VENV)/.rendering

# What software rendering through EGL needs on Debian and Ubuntu.
GL_PACKAGES := libegl1 libgl1 libopengl0
GL_CHECK := MUJOCO_GL=egl $(BIN)/python -c 'import mujoco; mujoco.GLContext(8, 8).make_current()'

.DEFAULT_GOAL := help
.PHONY: help setup lint format test test-all test-oldest test-fast mutants dist demo docs docs-serve results clean moved

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) $(RENDERING) ## make .venv and install everything into it (seconds when nothing changed)

lint: setup ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

format: setup ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One thread per test process: the processes already fill the cores.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest

test: setup lint ## set up, lint, check types, run the tests
	$(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist worksteal

test-all: setup lint ## the same with the tests that take half a minute or more each
	$(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist worksteal --long

OLDEST := .venv-oldest
test-oldest: ## the tests with the oldest versions that pyproject.toml allows, PyTorch's excepted
	rm -rf $(OLDEST) && $(PYTHON) -m venv $(OLDEST)
	{ $(PYTHON) -m tests.oldest_versions; grep '^torch==' constraints.txt; } > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install -q --disable-pip-version-check -c $(OLDEST)/constraints.txt -e '.[$(EXTRAS)]'
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

test-fast: setup ## the quick tests between two edits, under 2 minutes on two cores
	$(PYTEST) -n 2 --dist worksteal -m 'not slow' -q

mutants: setup ## put faults into copies of the code and see which test notices each; ONLY=replay for a part
	$(BIN)/python -m tests.mutants $(if $(ONLY),--only '$(ONLY)',--table docs/mutants.md)

# Without isolation the build uses the pinned back end of .venv and needs no network.
dist: setup ## build the wheel and the sdist into dist/ and check what is in them
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m tests.packaging dist/*.whl dist/*.tar.gz

demo: setup ## train an agent on the CPU and show what it learned
	$(BIN)/python -m playvirtual.cli.demo

# What is said about the future of a tool is not about this site.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs: setup ## build the documentation site into site/; a broken link or a missing page is an error
	$(MKDOCS) build --strict

docs-serve: setup ## show the site at http://127.0.0.1:8000 and build it anew when a page changes
	$(MKDOCS) serve --watch src --watch notebooks --watch results

results: setup ## start the next runs of results/queue.toml that fit into MINUTES, PER_GPU of them sharing a GPU
	$(BIN)/python results/run_queue.py --minutes $(MINUTES) --per-gpu $(PER_GPU)

clean: ## remove .venv, builds and caches
	rm -rf $(VENV) $(OLDEST) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the folder it was made in: a copied or broken environment is made anew.
ifneq ($(shell $(BIN)/python -c '' 2>/dev/null && cat $(INSTALLED) 2>/dev/null),$(CURDIR))
$(INSTALLED): moved
endif

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is missing or older than 3.11 ($$($(PYTHON) --version 2>&1)); try: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	@if [ -e $(UNFINISHED) ] || ! { [ "$$(cat $@ 2>/dev/null || echo '$(CURDIR)')" = '$(CURDIR)' ] && $(BIN)/python -m pip --version; } >/dev/null 2>&1; then \
	  rm -rf $(VENV); echo "making $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) cannot make virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	fi
	@rm -f $@ && touch $(UNFINISHED)
	@echo "installing playvirtual[$(EXTRAS)] (minutes the first time)"
	@PIP_USE_PEP517=1 $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@rm -f $(UNFINISHED) && printf '%s\n' '$(CURDIR)' > $@

# DeepMind Control renders through EGL. Its absence is said once and stops nothing else.
$(RENDERING): $(INSTALLED)
	@if [ "$$(uname)" = Linux ] && ! $(GL_CHECK) >/dev/null 2>&1; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing $(GL_PACKAGES)"; \
	    { timeout 120 apt-get update -qq; DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -qq --no-install-recommends $(GL_PACKAGES); } >/dev/null 2>&1; \
	  fi; \
	  $(GL_CHECK) >/dev/null 2>&1 || echo "note: no off-screen rendering, so no dmc/ tasks; on Debian or Ubuntu: apt-get install $(GL_PACKAGES)"; \
	fi
	@touch $@
