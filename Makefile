# New contributors need only `make demo` and `make test`. Each target creates .venv if it does not exist.

BIN := .venv/bin
INSTALLED := .venv/.installed
# The site needs a sixth of what the tests need, so that building it does not install all of that.
DOCS_VENV := $(if $(wildcard $(INSTALLED)),.venv,.venv-docs)
# Tests of what clients see of tables, which is the same if the tables have tablets: `make soak` runs them in this way.
WITH_TABLETS := SCANKV_TEST_TABLETS=3 SCANKV_TEST_WORKERS=2
SEEN_BY_ALL := tests/integration/client $(patsubst %,tests/integration/server/test_%.py,aggregates alter bad_input \
    check_table columnar_base combined_features consistent_cut encoded_rows expiry expiry_before_changes indexes \
    lifecycle locking_matrix pinned_changes query_binding resume rows snapshots types versions \
    waiting_calls write_identity)
# `make soak SLICE=0` to `SLICE=23` run a part of the tests that take minutes. `SLICE=all` runs all of them, and adds the
# pairs of operations that the checker covers to tests/model/checker/pairs.md.
SLICES := 24
SLICE := all
PYTEST := .ci/in-memory $(BIN)/python -m pytest -o tmp_path_retention_policy=failed -o junit_family=xunit1
PYTEST_OF_ALL := $(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder
SPHINX := --builder html --jobs auto --keep-going --quiet
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo tools test breadth check guard docs bench bench-field soak lowest versions fixture dist screenshots lock protos sync capabilities clean

help:
	@echo 'make demo    load 336,776 real flights, stream them back, compare with the source'
	@echo 'make test    run the tests, but those that take long or that shorter ones represent'
	@echo 'make breadth run an eighth of the tests that shorter ones represent, chosen by the hash of the commit'
	@echo 'make check   lint, types, import rules, generated code, the documentation and its links, the wheel'
	@echo 'make docs    build the documentation site into build/docs'
	@echo 'make bench   compare ScanKV with an in-process loop over RocksDB and with Arrow Flight'
	@echo 'make bench-field  compare ScanKV with Redis, PostgreSQL, DuckDB and others that are installed'
	@echo 'make guard   compare ratios of processor time with the committed values'
	@echo 'make soak    run the tests that take minutes; SLICE=0 to SLICE=23 runs a part of them'
	@echo 'make lowest  run most tests with the lowest version of each dependency'
	@echo 'make versions  test other versions of Python, pyarrow and PySpark than those of .venv'
	@echo 'make dist    build wheel and sdist, and check them'
	@echo 'make fixture save a data directory of this version for the tests of later versions'
	@echo 'make screenshots  take the screenshots of the documentation'
	@echo 'make lock    write the locks of the packages in the image; UPGRADE=--upgrade takes new versions'
	@echo 'make protos  generate the modules of scankv/v1 from protos/'
	@echo 'make sync    generate the blocking client from the asynchronous client'
	@echo 'make capabilities  write what ScanKV has and lacks into README.md and the guides'
	@echo 'make clean   remove .venv and the other environments and all other generated files'
	@echo 'PYTHON=/path/to/python3.12 chooses the interpreter of .venv'

demo: $(INSTALLED)
	@$(BIN)/scankv demo

# Runs before .venv is made, so that users learn at once what they have to install.
tools:
	@.ci/install-tools

# Tests wait as much as they compute, so it takes four workers to keep two cores busy. Files run in order, with the tests
# of Spark first and tests/unit last, so that no long file starts at the end. Bytecode is kept, since tests start many
# processes.
test: tools $(INSTALLED)
	@export PYTHONDONTWRITEBYTECODE=; status=0 begin=$$(date +%s); \
	$(PYTEST_OF_ALL) -m 'not (soak or breadth or alone)' --junit-xml=build/tests.xml || status=$$?; \
	$(PYTEST) -m 'alone and not (soak or breadth)' --junit-xml=build/tests-alone.xml \
	    $$(grep -rl 'mark\.alone' tests --include='*.py') || status=$$?; \
	echo "make test took $$((($$(date +%s) - begin) / 60)) min $$((($$(date +%s) - begin) % 60)) s; build/tests*.xml has the" \
	    "duration of each test"; \
	exit $$status

check: tools $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/check_types.py
	$(BIN)/python -m pytest -q tests/unit/test_imports.py tests/unit/test_protos.py \
	    tests/unit/client/test_sync_generated.py tests/docs/test_links.py
	$(BIN)/sphinx-build $(SPHINX) --fail-on-warning docs build/docs
	$(BIN)/python .ci/check_search.py
	$(BIN)/python .ci/check_commits.py
	$(BIN)/python .ci/check_wheel.py

docs: $(DOCS_VENV)/.installed
	@$(DOCS_VENV)/bin/sphinx-build $(SPHINX) docs build/docs
	@echo 'Open build/docs/index.html'

bench: $(INSTALLED)
	@$(BIN)/python -m benchmarks

# The servers of the rivals are not Python packages: docs/benchmarks-field.md says how to install them.
bench-field: $(INSTALLED)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[server,bench-field]'
	@$(BIN)/python -m benchmarks.field

guard: $(INSTALLED)
	@$(BIN)/python -m benchmarks.guard

# The part of a commit follows from its hash, so that each test with the marker `breadth` runs for one commit in eight.
breadth: tools $(INSTALLED)
	@export PYTHONDONTWRITEBYTECODE= SCANKV_SLICE=$$((0x$$(git rev-parse HEAD | cut -c 1-8) % 8))/8; \
	echo "make breadth runs the part $$SCANKV_SLICE of the tests"; \
	$(PYTEST_OF_ALL) -m 'breadth and not (soak or alone)' --junit-xml=build/tests-breadth.xml

# Every test is in one slice, by the hash of its name, so that each slice has tests of nearly every kind. Exit code 5 of
# pytest says that it has none of one kind.
soak: $(INSTALLED)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --group fuzz
	@status=0 begin=$$(date +%s); \
	keep() { [ $$1 = 5 ] || status=$$1; }; \
	$(if $(filter-out all,$(SLICE)),export SCANKV_SLICE=$(SLICE)/$(SLICES);) \
	$(PYTEST_OF_ALL) -m '(soak or breadth) and not alone' --durations=25 -o asyncio_debug=true || keep $$?; \
	$(PYTEST) -m '(soak or breadth) and alone' $$(grep -rl 'mark\.alone' tests --include='*.py') || keep $$?; \
	SCANKV_EXAMPLES_FACTOR=20 $(PYTEST_OF_ALL) -m '(hypothesis or seeds) and not (soak or breadth)' || keep $$?; \
	$(WITH_TABLETS) $(PYTEST_OF_ALL) -m 'not (alone or one_process or soak)' $(SEEN_BY_ALL) tests/model || keep $$?; \
	$(if $(filter all,$(SLICE)),$(BIN)/python -m tests.model.checker --seconds 600 \
	    --pairs tests/model/checker/pairs.md || keep $$?;) \
	echo "make soak SLICE=$(SLICE) took $$((($$(date +%s) - begin) / 60)) min"; \
	exit $$status

lowest: $(INSTALLED)
	@.ci/test-lowest

versions: $(INSTALLED)
	@.ci/test-versions

dist: $(INSTALLED)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --group release
	@$(BIN)/python .ci/make_dist.py

fixture: $(INSTALLED)
	@$(BIN)/python -m tests.support.fixture_data

screenshots: tools $(INSTALLED)
	@$(BIN)/python -m tests.support.screenshots

lock: $(INSTALLED)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --group lock
	@$(BIN)/python .ci/make_locks.py $(UPGRADE)

protos: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/generate-protos

sync: $(INSTALLED)
	$(BIN)/python .ci/generate_sync.py

capabilities: $(INSTALLED)
	$(BIN)/python .ci/generate_capabilities.py

clean:
	rm -rf .venv .venv-docs .venv-lowest .venv-versions .venv-jars build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml .ci/make-venv
	@.ci/make-venv
	@touch $@

.venv-docs/.installed: pyproject.toml .ci/make-venv
	@.ci/make-venv docs
	@touch $@
