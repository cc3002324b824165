# deepvm: two commands do everything: `make recommend` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PW ?= 3

.PHONY: help recommend test test-system test-all test-slow check coverage docs images bench bench-recovery proof-recovery proof-trainers proof-lab clean
.DEFAULT_GOAL := help

help:
	@echo "make recommend   install into .venv and recommend a cluster for PW=$(PW) \$$/h"
	@echo "make test        ring 1: tests that start no process and no slow server (six minutes on two cores)"
	@echo "make test-system ring 2: tests that start processes (ten minutes)"
	@echo "make test-all    rings 1 and 2, as CI runs them"
	@echo "make test-slow   ring 3: the long campaigns, and the tests of the other rings with more examples (two hours)"
	@echo "make check       ruff, mypy --strict, the size of each package, words that new lines avoid"
	@echo "make coverage    lines and branches that the tests of each package cover: modules 85 %, core and planner 95 %"
	@echo "make docs        README and docs/ as a site (build/site/)"
	@echo "make images      the pictures of the README, from the program (needs Chromium)"
	@echo "make bench       speed of the command line, growth with the catalog (build/bench/)"
	@echo "make bench-recovery   how fast jobs continue after losses, next to torchrun; how fast notices are"
	@echo "                 handled with 139 MB of state; a controller with 1000 agents (20 minutes)"
	@echo "make proof-recovery   as root: the campaigns behind docs/internals/explain/orchestrator.md (kills, notices,"
	@echo "                 parameters bit for bit, the history, the simulator), and a table of what they have shown (an hour)"
	@echo "make proof-trainers   Hugging Face, Lightning, Accelerate and plain loops: kills, bit for bit (half an hour); other releases"
	@echo "                 with: make proof-trainers TRAINERS='transformers==5.3.0 lightning==2.5.0'"
	@echo "make proof-lab   the recovery lab: kills, worlds of 1 to 4 ranks, strategies side by side, ECRL's matrix, and a table of"
	@echo "                 what they have shown with its limits (40 minutes)"
	@echo "make clean       remove .venv and build/"

# A stamp stands for each set of installed packages; it is renewed when pyproject.toml changes.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "deepvm needs Python 3.10 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Could not make a virtual environment. On Debian or Ubuntu: apt install python3-venv"; exit 1; }
	@touch $@

# pip byte-compiles what it installs, but not a checkout; without this every start would compile deepvm again.
COMPILE := $(BIN)/python -m compileall -q deepvm

$(VENV)/.base: pyproject.toml | $(VENV)/.made
	@echo "Installing deepvm into $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.made
	@echo "Installing deepvm and its test tools into $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.base $(VENV)/.docs

# Two more than there are cores: a third of the time tests wait for disks, threads and networks.
WORKERS = $(shell echo $$(($$(nproc --all) + 2)))
# Each worker imports all tests: twice as fast where the rewritten asserts of an earlier run are kept.
unexport PYTHONDONTWRITEBYTECODE

recommend: $(VENV)/.base
	@$(COMPILE)
	@$(BIN)/deepvm recommend --pw $(PW)

# tests/support/rings.py says which test belongs to which ring.
RING_1 := not system and not slow and not gpu
RING_2 := system and not slow and not gpu
test: RINGS := -m '$(RING_1)'
test-system: RINGS := -m '$(RING_2)'

test test-system test-all: $(VENV)/.dev
	@$(COMPILE)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(RINGS)

# The trainers that checkpoints are proven with: too much to install for every run of the tests.
$(VENV)/.trainers: $(VENV)/.dev
	@echo "Installing the trainers into $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[trainers]'
	@touch $@

test-slow: $(VENV)/.trainers
	THOROUGH_TESTS=1 $(BIN)/python -m pytest -n auto -m 'not gpu and not alone'
	THOROUGH_TESTS=1 $(BIN)/python -m pytest -m alone

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/budget.py
	$(BIN)/python scripts/wording.py

coverage: export OMP_NUM_THREADS := 1

coverage: $(VENV)/.dev
	$(BIN)/python scripts/coverage_rooms.py

$(VENV)/.docs: pyproject.toml | $(VENV)/.made
	@echo "Installing what builds the pages into $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict

images: $(VENV)/.dev
	$(BIN)/python scripts/page_images.py

bench: $(VENV)/.dev
	@$(COMPILE)
	$(BIN)/python scripts/bench.py

bench-recovery: $(VENV)/.dev
	@$(COMPILE)
	$(BIN)/python scripts/bench_recovery.py
	$(BIN)/python scripts/bench_notice.py
	$(BIN)/python scripts/bench_controller.py

proof-recovery: export OMP_NUM_THREADS := 1

proof-recovery: $(VENV)/.dev
	@$(COMPILE)
	$(BIN)/python scripts/proof_recovery.py

proof-trainers: export OMP_NUM_THREADS := 1
proof-trainers: TRAINERS ?= -e .[trainers]

proof-trainers: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TRAINERS)
	@rm -f $(VENV)/.trainers
	THOROUGH_TESTS=1 $(BIN)/python -m pytest -n auto -m 'not gpu and not alone' tests/checkpoint/integrations \
		tests/checkpoint/loading tests/lab/certify/test_examples.py

proof-lab: export OMP_NUM_THREADS := 1

proof-lab: $(VENV)/.dev
	@$(COMPILE)
	$(BIN)/python scripts/proof_lab.py

clean:
	rm -rf $(VENV) build dist
