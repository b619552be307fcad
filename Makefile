# Every target sets up its own virtual environment in .venv and reuses it until pyproject.toml changes.
# Needed on the machine: make, and Python 3.10 or newer.
#
#   make demo                        the whole path on a small example, offline once installed
#   make test                        lint, types, tests
#   make test PYTHON=python3.12      with another interpreter (for a new .venv)
#   make test PIP_FLAGS="..."        extra flags for pip install (a mirror, a cache, a CPU-only torch index)
#   make test PIP_FLAGS="-c constraints.txt"  the very versions of the last run of the tests

PYTHON    ?= python3
PIP_FLAGS ?=
BENCH_FLAGS ?=

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTS  := $(VENV)/.ready-tests
DOCS   := $(VENV)/.ready-docs
BENCH  := $(VENV)/.ready-bench
AUDIT  := $(VENV)/.ready-audit

export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP := $(BIN)/python -m pip install --quiet $(PIP_FLAGS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint bench docs audit constraints clean

help:  ## Show this list
	@echo "kalmanclip: few-shot fine-tuning of CLIP with a Kalman filter"
	@echo
	@awk 'BEGIN { FS = ":[^#]*## " } /^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## Run the demo: fit, predict and evaluate a small example
	$(BIN)/kalmanclip demo

test: lint $(TESTS)  ## Lint, check types and run the tests
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(READY)  ## Check style, formatting, types, and which folder imports which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(BENCH)  ## Run the benchmarks (times as ratios, memory); BENCH_FLAGS="--quick"
	$(BIN)/python -m benchmarks $(BENCH_FLAGS)

docs: $(DOCS)  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

audit: $(AUDIT)  ## Look up known vulnerabilities of everything that is installed
	@$(BIN)/python .ci/audit.py

constraints: $(TESTS)  ## Note the installed versions in constraints.txt
	@$(BIN)/python .ci/constraints.py > constraints.tmp && mv constraints.tmp constraints.txt

clean:  ## Remove build output and caches (.venv stays; delete it by hand)
	rm -rf site build dist demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The stamps are written last, so a set-up that was interrupted or failed is simply done again.
$(READY): pyproject.toml
	@rm -f $(READY) $(TESTS) $(DOCS) $(BENCH) $(AUDIT)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	    command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	        echo "kalmanclip needs Python 3.10 or newer, and '$(PYTHON)' was not found." >&2; \
	        echo "Install it, or name another one: make PYTHON=python3.11 ..." >&2; \
	        exit 1; }; \
	    "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	        echo "kalmanclip needs Python 3.10 or newer; '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1)." >&2; \
	        echo "Name a newer one: make PYTHON=python3.11 ..." >&2; \
	        exit 1; }; \
	    echo "Creating $(VENV) ..."; \
	    "$(PYTHON)" -m venv --clear $(VENV); }
	@echo "Installing kalmanclip and its tools into $(VENV) (minutes the first time) ..."
	@$(PIP) -e ".[dev]"
	@touch $@

$(TESTS): $(READY)
	@echo "Installing the optional parts that tests need into $(VENV) ..."
	@$(PIP) -e ".[app,ray,onnx,transformers,peft]"
	@touch $@

$(BENCH): $(READY)
	@echo "Installing what benchmarks compare with into $(VENV) ..."
	@$(PIP) -e ".[bench]"
	@touch $@

$(DOCS): $(READY)
	@echo "Installing the documentation tools into $(VENV) ..."
	@$(PIP) -e ".[docs]"
	@touch $@

$(AUDIT): $(READY)
	@echo "Installing pip-audit into $(VENV) ..."
	@$(PIP) -e ".[audit]"
	@touch $@
