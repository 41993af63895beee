# `make demo` and `make test` are all that a newcomer needs. Each target makes .venv when there is none.

BIN := .venv/bin
INSTALLED := .venv/.installed
SPHINX := --builder html --jobs auto --keep-going --quiet
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo tools test check docs bench soak lowest dist protos sync clean

help:
	@echo 'make demo    load 336,776 real flights, stream them back, compare with the source'
	@echo 'make test    run all tests'
	@echo 'make check   lint, types, import rules, generated code, the documentation and its links, the wheel'
	@echo 'make docs    build the documentation site into build/docs'
	@echo 'make bench   measure against the loop in-process and Arrow Flight'
	@echo 'make soak    the tests that take minutes'
	@echo 'make lowest  most tests with the lowest version of each dependency'
	@echo 'make dist    build wheel and sdist, and check them'
	@echo 'make fixture keep a data directory of this version for the tests of later ones'
	@echo 'make protos  generate the modules of scankv/v1 from protos/ again'
	@echo 'make sync    generate the blocking client again, from the asynchronous one'
	@echo 'make clean   remove .venv, .venv-lowest and everything else that was made'
	@echo 'PYTHON=/path/to/python3.12 chooses the interpreter of .venv'

demo: $(INSTALLED)
	@$(BIN)/scankv demo

# Comes first, so that whoever has to install something hears of it before .venv is made.
tools:
	@.ci/install-tools

# Tests wait as much as they compute, so it takes four workers to keep two cores busy. Files in their order, those of Spark
# first: the long ones stand before tests/unit, and none of them is begun at the end. Bytecode is kept, for the many
# processes that they start.
test: tools $(INSTALLED)
	@PYTHONDONTWRITEBYTECODE= .ci/in-memory $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder \
	    -o tmp_path_retention_policy=failed

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/check_types.py
	$(BIN)/python -m pytest -q tests/unit/test_imports.py tests/unit/test_protos.py \
	    tests/unit/client/test_sync_generated.py tests/docs/test_links.py
	$(BIN)/sphinx-build $(SPHINX) --fail-on-warning docs build/docs
	$(BIN)/python .ci/check_commits.py
	$(BIN)/python .ci/check_wheel.py

docs: $(INSTALLED)
	@$(BIN)/sphinx-build $(SPHINX) docs build/docs
	@echo 'Open build/docs/index.html'

bench: $(INSTALLED)
	@$(BIN)/python -m benchmarks

soak: $(INSTALLED)
	@$(BIN)/python -m pytest -m soak -o asyncio_debug=true
	@SCANKV_EXAMPLES_FACTOR=20 $(BIN)/python -m pytest -m "hypothesis and not soak" -n 2

lowest: $(INSTALLED)
	@.ci/test-lowest

dist: $(INSTALLED)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --group release
	@$(BIN)/python .ci/make_dist.py

fixture: $(INSTALLED)
	@$(BIN)/python -m tests.support.fixture_data

protos: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/generate-protos

sync: $(INSTALLED)
	$(BIN)/python .ci/generate_sync.py

clean:
	rm -rf .venv .venv-lowest build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml .ci/make-venv
	@.ci/make-venv
	@touch $@
