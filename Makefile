# Everything a developer does with MetaQ. `make` alone prints the list.
#
# Set-up leaves a stamp per step under .venv/stamps, named by a hash of what went into it,
# so a step runs again exactly when its input changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles modules when it first needs them, which is few of Spark's and pandas'.
export PIP_NO_COMPILE := 1
# Debian's pip would run pyspark's setup.py itself.
export PIP_USE_PEP517 := 1
# Every file that pip fetches must have a checksum in requirements/. An isolated build would fetch its tools without one.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation

hash_of = $(shell cat $(1) 2>/dev/null | sha256sum | cut -c1-16)
# Only `make bench` needs the clients that ours is compared with.
BENCH_REQUIREMENTS := requirements/bench.txt
# Tests, type checks and `make bench` need Spark; running MetaQ does not.
SPARK_REQUIREMENTS := requirements/spark.txt
# Only `make requirements` needs uv, which writes the files.
UV_REQUIREMENTS := requirements/uv.txt
REQUIREMENTS := $(filter-out $(BENCH_REQUIREMENTS) $(SPARK_REQUIREMENTS) $(UV_REQUIREMENTS),$(wildcard requirements/*.txt))
NATIVE_SOURCES := Cargo.toml Cargo.lock pyproject.toml \
	$(sort $(shell find crates -name target -prune -o -name fuzz -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print))
INSTALLED := $(STAMPS)/requirements-$(call hash_of,$(REQUIREMENTS))
BENCH_INSTALLED := $(STAMPS)/bench-$(call hash_of,$(BENCH_REQUIREMENTS))
SPARK_INSTALLED := $(STAMPS)/spark-$(call hash_of,$(SPARK_REQUIREMENTS))
UV_INSTALLED := $(STAMPS)/uv-$(call hash_of,$(UV_REQUIREMENTS))
BUILT := $(STAMPS)/native-$(call hash_of,$(NATIVE_SOURCES))
# Somebody else's build or a clean may have taken the module away: then the stamp means nothing.
ifeq ($(wildcard python/metaq/_core*.so),)
.PHONY: $(BUILT)
endif

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(INSTALLED) $(BUILT) ## Create .venv, install what is needed, build the native module and the metaq command

.PHONY: setup-python
setup-python: $(INSTALLED) ## Only create .venv and install the Python packages that setup needs

.PHONY: run
run: setup ## Start name server and broker in the foreground; make run ARGS="--data DIR …"
	@exec $(BIN)/metaq serve $(ARGS)

.PHONY: test
test: setup-test ## Set up and run every test and check; make test ARGS="pytest arguments"
	@exec $(BIN)/python scripts/test.py all $(ARGS)

.PHONY: test-unit
test-unit: setup $(SPARK_INSTALLED) ## Only the quick Python tests; ARGS as above
	@exec $(BIN)/python scripts/test.py unit $(ARGS)

.PHONY: test-bare
test-bare: ## Run both commands on a bare Debian 12 made by debootstrap (as root); ARGS="run" for make run alone
	@exec $(PYTHON) scripts/bare.py $(ARGS)

.PHONY: test-rust
test-rust: ## Only the Rust tests
	@scripts/require.sh rust
	@exec $(PYTHON) scripts/test.py rust

.PHONY: lint
lint: setup $(SPARK_INSTALLED) ## Check format, lint and types of Rust and Python
	@scripts/require.sh rust_lint
	@exec $(BIN)/python scripts/test.py lint

.PHONY: format
format: setup ## Format Rust and Python in place
	@scripts/require.sh rust_lint
	cargo fmt --all
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

.PHONY: docs
docs: setup ## Write the generated parts anew: docs/configuration.md, docs/commands.md, the boards in deploy/grafana
	@$(BIN)/python scripts/configuration.py
	@$(BIN)/python scripts/commands.py
	@$(BIN)/python scripts/boards.py

.PHONY: requirements
requirements: $(UV_INSTALLED) ## Write requirements/*.txt from the .in files; ARGS="--upgrade-package NAME" to take a newer version
	@$(BIN)/python scripts/requirements.py $(ARGS)

.PHONY: jars
jars: setup-python ## Write tests/support/jars.sha256, the checksums of all jars, after a pom.xml changed
	@scripts/require.sh java maven
	@$(BIN)/python -m tests.support.jar_checksums

.PHONY: bench
bench: setup-test $(BENCH_INSTALLED) ## Measure against RocketMQ and Kafka in alternating rounds; ARGS="--help" tells how
	@exec $(BIN)/python -m bench $(ARGS)

.PHONY: soak
soak: setup-test ## Clients and broker at full rate for an hour, then hundreds of kills; ARGS="--seconds 60", "--faults", "--hostile" or "--damage"
	@$(BIN)/python -m bench.soak $(ARGS)
	@$(if $(findstring --faults,$(ARGS))$(findstring --hostile,$(ARGS))$(findstring --damage,$(ARGS)),:,METAQ_LONG=1 exec $(BIN)/python -m pytest -m kill_loop tests)

.PHONY: screenshots
screenshots: setup ## Draw the gallery of the console anew: docs/images/console
	@scripts/require.sh browser
	@exec $(BIN)/python -m scripts.screenshots $(ARGS)

FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: ## Fuzz every decoder in turn, FUZZ_SECONDS each (needs a nightly Rust and cargo-fuzz)
	@scripts/require.sh fuzz
	@for directory in crates/*/fuzz; do \
	    for target in $$(cargo +nightly fuzz list --fuzz-dir $$directory); do \
	        echo "── $$directory $$target"; \
	        cargo +nightly fuzz run --fuzz-dir $$directory $$target -- -max_total_time=$(FUZZ_SECONDS); \
	    done; \
	done

# The interpreter of .venv, as in `maturin develop`: with another one everything would be compiled again.
.PHONY: wheel
wheel: $(INSTALLED) ## Build a wheel into dist/, to install where there is no Rust
	@scripts/require.sh rust
	@rm -f dist/*.whl
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin build --release --interpreter $(BIN)/python --out dist

.PHONY: clean
clean: ## Remove everything that was built (data/ stays)
	rm -rf $(VENV) target build dist python/metaq/_core*.so .pytest_cache .mypy_cache .ruff_cache
	find python tests scripts bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The tests run unmodified Java and Go clients against MetaQ and mirror real databases. Most of this set-up is waiting
# for downloads, so its steps run side by side while the compiler builds the native module.
.PHONY: setup-test
setup-test:
	@$(MAKE) --no-print-directory --jobs=8 setup $(SPARK_INSTALLED) mysql network systemd apache-archive go-peers spark-peers

.PHONY: tools mysql network systemd java-peers apache-archive go-peers spark-peers
tools:
	@PYTHON=$(PYTHON) scripts/require.sh python rust_lint java maven go mariadb postgresql etcd prometheus browser

mysql:
	@$(PYTHON) scripts/mysql.py || echo 'the tests on MySQL will be skipped' >&2

network:
	@scripts/require.sh network || echo 'the tests that cut networks will be skipped' >&2

systemd:
	@scripts/require.sh systemd || echo 'the tests that start systemd units will be skipped' >&2

# Apache's servers and tools, Delta's jars and drivers, as Maven artefacts: fetched here, where a slow network breaks no
# time-out. One after the other, because they write into one local repository.
java-peers: tools $(INSTALLED)
	@$(BIN)/python -c "from tests.support.apache import apache_classpath; apache_classpath()"
	@$(BIN)/python -c "from tests.support.spark_jars import delta_jars; delta_jars()"
	@$(BIN)/python -c "from tests.interop.programs import build_java; build_java(['5.5.0', '4.9.8'])"

# It sends a message through Apache's broker, so it needs our client.
apache-archive: java-peers setup
	@$(BIN)/python -m tests.support.apache_archive

go-peers: tools $(INSTALLED)
	@$(BIN)/python -c "from tests.interop.programs import build_go; build_go()"
	@$(BIN)/python -c "from tests.integration.deploy.programs import build; build()"

spark-peers: tools $(SPARK_INSTALLED)
	@$(BIN)/python -m tests.support.spark_home

.PHONY: setup-etcd
setup-etcd: ## Find etcd, the register of an automatic master switch, or install it from Debian's package (as root)
	@scripts/require.sh etcd
	@etcd --version | sed -n 1p

$(BIN)/python:
	@PYTHON=$(PYTHON) scripts/require.sh python
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(BIN)/python
	$(PIP_INSTALL) $(REQUIREMENTS:%=-r %)
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/requirements-* && touch $@

$(BENCH_INSTALLED): $(INSTALLED)
	$(PIP_INSTALL) -r $(BENCH_REQUIREMENTS)
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/bench-* && touch $@

$(SPARK_INSTALLED): $(INSTALLED)
	$(PIP_INSTALL) -r $(SPARK_REQUIREMENTS)
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/spark-* && touch $@

$(UV_INSTALLED): $(BIN)/python
	$(PIP_INSTALL) -r $(UV_REQUIREMENTS)
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/uv-* && touch $@

# maturin calls pip for what pyproject.toml names. All of it is there, so pip must not fetch anything.
$(BUILT): $(INSTALLED)
	@scripts/require.sh rust
	VIRTUAL_ENV=$(abspath $(VENV)) PIP_QUIET=1 PIP_NO_INDEX=1 $(BIN)/maturin develop --release
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/native-* && touch $@
