# make help says what there is. Needs python3 (3.10 to 3.13) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LATEST := .venv-latest
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev
FULL_STAMP := $(VENV)/.installed-full
# processes for the tests: one a core, up to four
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); [ $$n -lt 4 ] && echo $$n || echo 4)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# $(call install,SET,EXTRAS): on Linux what requirements/SET.txt locks, file by file; elsewhere the newest that fit.
ifeq ($(shell uname -s),Linux)
install = $(PIP) --require-hashes -r requirements/$(1).txt && $(PIP) --no-deps --no-build-isolation -e .
else
install = $(PIP) -c constraints.txt -e '.[$(2)]'
endif

# pytest keeps the tests as bytecode with its asserts rewritten; without it each run compiles them anew (15 s a process)
unexport PYTHONDONTWRITEBYTECODE

comma := ,
RUN_EXTRAS := mm,clip,viz
LOCK := pyproject.toml --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-annotate --quiet \
	--custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-latest attack lint format docs bench lines lock clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(RUN_STAMP)  ## set up, then train and test four small models on photos and emoji; a page of pictures at the end
	@$(BIN)/python tools/demo.py

test: $(DEV_STAMP)  ## set up, then run the tests (a few minutes)
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal

test-all: $(FULL_STAMP)  ## the tests, the slow ones too: notebooks, and the app in a browser
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

attack: $(DEV_STAMP)  ## send hypvision hostile files, servers, disks and huge data (half an hour); the table of SECURITY.md
	$(BIN)/python -m tests.hostile --write SECURITY.md

test-latest: | $(LATEST)/bin/python  ## the tests with the newest versions that pyproject.toml allows, in .venv-latest
	@echo "Installing into $(LATEST): 6 GB at the first call ..."
	@$(LATEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e '.[dev]'
	@$(LATEST)/bin/python tools/compare_versions.py
	$(LATEST)/bin/python -m pytest -m "not slow" -n $(JOBS) --dist worksteal

lint: $(DEV_STAMP)  ## ruff, codespell, layers of packages, types of the package and of the documentation's examples
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/python tools/check_docs.py

format: $(DEV_STAMP)  ## let ruff put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(FULL_STAMP)  ## build the site into build/docs, offline; runs the notebooks that have changed
	@test -f build/docs/searchindex.js || rm -rf build/docs/.doctrees  # of a build that was interrupted
	@rm -rf docs/api  # of names that may be gone
	HYPVISION_OFFLINE=1 $(BIN)/python -m sphinx --fail-on-warning --quiet -b html -c docs . build/docs
	@echo "The site is in build/docs/index.html."

bench: $(DEV_STAMP)  ## measure HCFormer against its reference implementation and timm's models; writes docs/benchmarks.md
	$(BIN)/python tools/benchmark.py hcformer --write docs/benchmarks.md

lines:  ## count lines, tokens, branches and guards of the package, room by room
	@$(PYTHON) tools/count_code.py

lock:  ## resolve requirements/ anew for Linux and every Python from constraints.txt and pyproject.toml (needs uv)
	uv pip compile $(LOCK) --extra dev -c constraints.txt -o requirements/dev.txt
	uv pip compile $(LOCK) $(foreach extra,$(subst $(comma), ,$(RUN_EXTRAS)),--extra $(extra)) -c requirements/dev.txt -o requirements/run.txt
	uv pip compile $(subst 3.10,3.11,$(LOCK)) --extra full -c requirements/dev.txt -o requirements/full.txt

clean:  ## remove what was built and trained, and the environments
	rm -rf $(VENV) $(LATEST) work_dirs build dist docs/api *.egg-info .pytest_cache .ruff_cache .hypothesis .cache

$(BIN)/python $(LATEST)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info < (3, 14) else "hypvision needs Python 3.10 to 3.13: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(@:/bin/python=) || { rm -rf $(@:/bin/python=); echo "No environment could be made: see above (Debian and Ubuntu: apt install python3-venv)."; exit 1; }

$(RUN_STAMP): pyproject.toml requirements/run.txt Makefile | $(BIN)/python
	@echo "Installing into $(VENV): a few minutes and 6 GB at the first call ..."
	@$(call install,run,$(RUN_EXTRAS))
	@touch $@

$(DEV_STAMP): pyproject.toml requirements/dev.txt Makefile | $(BIN)/python
	@echo "Installing into $(VENV): a few minutes and 6 GB at the first call ..."
	@$(call install,dev,dev)
	@touch $@ $(RUN_STAMP)

$(FULL_STAMP): pyproject.toml requirements/full.txt Makefile | $(BIN)/python
	@$(call install,full,full)
	@touch $@ $(DEV_STAMP) $(RUN_STAMP)
