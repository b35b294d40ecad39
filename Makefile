# make demo | test | notebooks | docs | lint | bench: each makes .venv and installs what it needs, once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
PYTEST ?=
PYTHONS ?= python3.11 python3.12 python3.13

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo notebooks test test-lens docs docs-test lint bench format catalog constraints release-test clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@echo "make demo         train two small ViTs on 5,000 digits, look inside, attack, write a report"
	@echo "make test         run the tests in JOBS=$(JOBS) processes (PYTEST='-k cli -x' passes options on)"
	@echo "make notebooks    run the notebooks and compare with what is stored (NOTEBOOKS='1 5' for some, WRITE=1 stores anew)"
	@echo "make test-lens    compare attribution and patching with TransformerLens, in an environment of its own"
	@echo "make docs         the site: site/index.html opens from disk"
	@echo "make docs-test    run the examples of the pages, check their commands, links, spelling and the site"
	@echo "make lint         ruff and mypy"
	@echo "make bench        run every benchmark, one after another"
	@echo "make format       let ruff rewrite the code in the house style"
	@echo "make catalog      examine the models of the installed timm: the table behind 'vitscope models'"
	@echo "make release-test build wheel and sdist, and try them with PYTHONS=\"$(PYTHONS)\" in fresh environments"
	@echo "make constraints  write the versions installed in $(VENV) to constraints.txt"
	@echo "make clean        remove $(VENV), caches and build folders (not your runs)"
	@echo "PYTHON=python3.12 chooses the interpreter, VENV=folder the environment."

demo: $(VENV)/.ready-demo
	$(BIN)/vitscope demo

# One thread per process: small tensors gain nothing from more, and processes that share cores lose by it.
test: $(VENV)/.ready-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations=15 --ignore tests/docs $(PYTEST)

notebooks: $(VENV)/.ready-notebooks
	$(BIN)/python notebooks/execute.py $(if $(WRITE),--write) $(NOTEBOOKS)

# TransformerLens 3 is the last with a GPT-2 of its own. It brings much along, so that it has its own environment.
test-lens: $(VENV)-lens/.ready
	OMP_NUM_THREADS=1 $(VENV)-lens/bin/python -m pytest -q tests/models/test_transformer_lens.py

$(VENV)-lens/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-lens
	$(VENV)-lens/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test]' 'transformer-lens==3.9.0'
	@touch $@

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site: site/index.html"

docs-test: docs $(VENV)/.ready-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --durations=10 tests/docs $(PYTEST)

lint: $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready-test
	@set -e; for script in $$(grep -l __main__ benchmarks/*.py); do echo "== $$script"; $(BIN)/python $$script; done

format: $(VENV)/.ready-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# After a new timm in constraints.txt and after a new family of models. The tests compare the table with timm.
catalog: $(VENV)/.ready-test
	$(BIN)/python -m vitscope.models.examine

constraints: $(VENV)/.ready-test $(VENV)/.ready-docs $(VENV)/.ready-lint
	$(BIN)/python -m pip freeze --exclude vitscope > constraints.txt

# What a user would get: built, installed without the repository, used. Leaves wheel and sdist in dist/.
release-test:
	$(PYTHON) tests/release/run.py $(PYTHONS)

# pip is the last thing that `python -m venv` writes: a broken attempt is repeated, not half used.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# The stamp is newer than what it was made from, so a second run installs nothing.
$(VENV)/.ready-%: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing vitscope[$*] into $(VENV); the first time this fetches PyTorch and takes some minutes."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-lens build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
