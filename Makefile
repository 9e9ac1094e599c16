# make timeline   run the four loaders on MNIST, print the tables, write timelines.html
# make lab        open the notebooks
# make test       pass the tests that need no browser, kernel or second Python, in five minutes on two cores
# make test-all   pass all of them        make check   style, types, import rules    make check-js   prettier and eslint
# make test-spawn the main job, the lessons and the tests of the DataLoader with workers that are started anew
# make test-integrations  the how-to pages of Lightning, transformers, accelerate and webdataset
# make mutants    the share of small changes of the program that the tests see: make mutants SEED=7 COUNT=100
# make bench      timings                 make notebooks   write and run notebooks/*.ipynb, from notebooks/src/*.py
# make dist       the wheel and the source archive, in dist/, as they are uploaded (docs/releasing.md)
# make book       lessons, rules and guide as pages in build/book, to read on any device, without a server or a network
# make site       the front page, which needs no install, in build/site, for any host; with the book, if that was made before
# Each sets up .venv by itself, on first use, by start.py. Python 3.11.5 to 3.14 is all they need; without make: docs/setup.md.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
ROOT_FLAGS := $(if $(filter 0,$(shell id -u)),--allow-root)

# With PyTorch's CPU build .venv has 1.4 GB, with the default one for Linux 5.5. `make TORCH_INDEX=URL` chooses another index.
.PHONY: setup setup-dev timeline test test-all test-again test-spawn test-integrations test-versions mutants check lab bench notebooks book site clean

setup: $(READY)

setup-dev: $(READY_DEV)

$(READY): requirements.txt pyproject.toml
	$(PYTHON) start.py

$(READY_DEV): $(READY) requirements-dev.txt
	$(PYTHON) start.py --dev

timeline: setup
	$(RUN) -m loaderviz compare --out timelines.html

lab: setup
	@echo "JupyterLab prints the address to open; Ctrl-C ends it."
	$(RUN) -m jupyterlab $(ROOT_FLAGS) --no-browser --notebook-dir=notebooks

# The wheel is made of the archive, so that it lacks nothing, and has nothing of an older build/. What makes both is
# setuptools (77 or later), of requirements.txt.
.PHONY: dist
dist: setup-dev
	rm -rf dist
	$(RUN) -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" > /dev/null
	$(RUN) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/*.tar.gz
	ls -l dist

# Asserts are rewritten once and kept for all processes, also where the environment says that no bytecode is written.
# Some tests wait for clocks and for other processes: one process more than there are processors, and 5 at most.
JOBS_OF_TESTS := $(shell $(PYTHON) -c "import os; print(min(5, 1 + (len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 4)))")
PYTEST := PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest --numprocesses $(JOBS_OF_TESTS) --dist worksteal

FAST := not fuzz and not slow

test: setup-dev
	$(PYTEST) -m "$(FAST)"

test-all: setup-dev
	$(PYTEST)

# What failed last, alone: 3 tests at most, since what a busy machine does is no excuse for more.
test-again:
	@$(RUN) -c "import json; failed = json.load(open('.pytest_cache/v/cache/lastfailed')); print(*failed, sep='\n'); exit(not 0 < len(failed) < 4)"
	$(PYTEST) --numprocesses 0 --last-failed --last-failed-no-failures none

# How workers start on macOS and Windows, and by Python 3.14 on Linux. A spawned worker takes 3 to 4 s of a processor for
# its imports, so the quick tests alone run with it; the fork server has torch ready, and runs the slow ones, too. Other
# tests with workers have data sets that are local to them, which can only be forked.
WORKERS := $(addprefix tests/,emulator/torch/test_torch_dataloader.py traces/test_workers.py workshop/test_lesson06.py)
ANEW := started_anew or main_job

test-spawn: setup-dev
	LOADERVIZ_START=forkserver $(PYTEST) -m "not fuzz" $(WORKERS)
	LOADERVIZ_START=spawn $(PYTEST) -m "$(FAST)" $(WORKERS)
	for start in forkserver spawn; do \
	  LOADERVIZ_START=$$start $(PYTEST) -k "$(ANEW)" tests/test_notebooks.py tests/portability/test_systems.py || exit 1; \
	done

# The how-to pages of libraries that no other test needs; they are installed beside .venv, which stays as it is.
INTEGRATIONS := $(CURDIR)/build/integrations

$(INTEGRATIONS)/.ready: requirements-integrations.txt
	$(RUN) -m pip install --quiet --no-deps --upgrade --target $(INTEGRATIONS) -r requirements-integrations.txt
	touch $@

test-integrations: setup-dev $(INTEGRATIONS)/.ready
	PYTHONPATH=$(INTEGRATIONS) $(PYTEST) tests/test_pages.py -k "lightning or transformers or accelerate or webdataset"

# The emulator's tests on other versions, PYTHON:TORCH, each in a .venv of its own; they write the table of docs/setup.md.
VERSIONS ?= 3.11:2.10.0 3.12:2.13.0 3.13:2.14.1 3.14:2.14.1

test-versions: setup-dev
	$(RUN) -m benchmarks.versions $(VERSIONS)

SEED ?= 1
COUNT ?= 100
JOBS ?= 2
MUTATED ?= $(addprefix loaderviz/,$(addprefix emulator/,device.py runtime.py memory.py kernels.py replay.py hardware.py \
  host.py hazards/happens_before.py hazards/races.py) metrics.py $(addprefix analysis/,advice.py evidence.py what_if.py) \
  traces/kineto.py view/pack.py)
# Names of cosmic-ray's operators, as a pattern, and of two of benchmarks/mutants.py. What is left out gives mostly
# equal programs, or ones that any test sees.
COMPARISONS := Eq_NotEq|NotEq_Eq|Lt_(LtE|GtE)|LtE_(Lt|Gt)|Gt_(GtE|LtE)|GtE_(Gt|Lt)|Is_IsNot|IsNot_Is
ARITHMETIC := Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_Mul|BitOr_BitAnd|BitAnd_BitOr|LShift_RShift|RShift_LShift
MUTATIONS ?= NumberReplacer|AddNot|Replace(True|False|And|Or|Break|Continue)With\w+|ZeroIterationForLoop|DropOperand|$\
  DropStatement|ReplaceComparisonOperator_($(COMPARISONS))|ReplaceBinaryOperator_($(ARITHMETIC))|$\
  ReplaceUnaryOperator_Delete_(Not|USub|Invert)

mutants: setup-dev
	$(RUN) -m benchmarks.mutants --seed $(SEED) --count $(COUNT) --jobs $(JOBS) --fast "$(FAST)" \
	  --operators '$(MUTATIONS)' $(MUTATED)

# Dev only, and of another world: Node.js and what package.json names. `check` has it where that is there, CI has not.
SCRIPTS := $(filter-out %/load.js,$(wildcard loaderviz/view/*.js)) docs/story/story.js

node_modules:
	@echo "JavaScript cannot be checked: node_modules is missing. Get Node.js (20.19 or later) and run: npm install" >&2; exit 1

.PHONY: check-js
check-js: node_modules
	node_modules/.bin/prettier --check "loaderviz/**/*.js" "docs/story/*.js"
	node_modules/.bin/eslint loaderviz/view/load.js loaderviz/widgets/choices.js
	cat $(SCRIPTS) | node_modules/.bin/eslint --stdin --stdin-filename page.mjs  # one scope, as pages have them

check: setup-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(if $(wildcard node_modules),$(MAKE) check-js,@echo "JavaScript is not checked here: make check-js says what that needs")

bench: setup-dev
	@for file in $(filter-out $(addprefix benchmarks/,mutants.py gpu_day.py versions.py),$(wildcard benchmarks/*.py)); do name=$$(basename $$file .py); echo "== $$name"; $(RUN) -m benchmarks.$$name || exit 1; done

notebooks: setup-dev
	$(RUN) notebooks/build.py --execute

book: setup-dev
	$(RUN) docs/book.py

site: setup-dev
	$(RUN) docs/site.py $(if $(wildcard build/book/index.html),--book build/book)

clean:
	rm -rf $(VENV) dist timelines.html
