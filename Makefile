# The two commands are `make demo` and `make test`; both install what they need into .venv first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install test demo check docs tables package clean

install: $(STAMP)

# torch goes first and pinned: a dependency that resolves it alone would pull a much larger build.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

check: install
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Two test processes with one thread each finish sooner on two cores than one process with two threads.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# A wheel and an sdist in dist/, and a smoke test of both; `build` makes the wheel from the sdist, so both are whole.
package: install
	$(BIN)/python -m pip install --quiet "build>=1.2"
	rm -rf dist
	$(BIN)/python -m build
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_package.py

demo: install
	$(BIN)/drcl demo

# Every table of results in docs and README, from results/; a test fails when one is stale.
tables: install
	$(BIN)/python -m benchmarks.tables

# The site, into build/site. A broken link, a missing page or a stale reference page fails the build.
docs: install
	$(BIN)/python docs/reference/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist src/*.egg-info
