# make timeline   run the four loaders on MNIST, print the tables, write timelines.html
# make test       pass the tests          make check   style, types, import rules
# make lab        open the notebooks      make bench   timings
# make notebooks  write notebooks/*.ipynb and notebooks/solutions/*.ipynb from notebooks/src/*.py
# Each sets up .venv by itself, on first use. Python 3.11 or later is all they need.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
ROOT_FLAGS := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: setup timeline test check lab bench notebooks clean

setup: $(READY)

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "loaderviz needs Python 3.11 or later; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

timeline: setup
	$(RUN) -m loaderviz compare --out timelines.html

test: setup
	$(RUN) -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

lab: setup
	@echo "JupyterLab prints the address to open; Ctrl-C ends it."
	$(RUN) -m jupyterlab $(ROOT_FLAGS) --no-browser --notebook-dir=notebooks

bench: setup
	@for file in benchmarks/*.py; do name=$$(basename $$file .py); echo "== $$name"; $(RUN) -m benchmarks.$$name || exit 1; done

notebooks: setup
	$(RUN) notebooks/build.py

clean:
	rm -rf $(VENV) timelines.html
