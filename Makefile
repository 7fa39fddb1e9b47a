# Everything from a bare Python 3.11+ and Java 17+: the environment is made in .venv on first use.
#   make demo    the main job on real brokers, ends with a report
#   make test    every test but the long ones
#   make test-quick  what needs no Java: no brokers, no Spark
#   make check   lint, format, types, import layers, sizes, words, spelling
#   make bench   the benchmarks, side by side with their peers
#   make docs    the documentation site, in site/
#   make screens  the pictures of docs/terminal.md: real commands on real brokers
#   make dist    wheel and sdist in dist/, once version, tag and changelog agree
#   make soak    the long tests, long fuzzing, minutes of faults on a producer, 5 GB read under faults, twenty kills of each pipeline

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
# An installed uv, else one inside the environment.
UV := $(or $(shell command -v uv 2>/dev/null),$(BIN)/uv)
export UV_PROJECT_ENVIRONMENT := $(VENV)
export UV_PYTHON_DOWNLOADS := never
# Where the environment says not to keep compiled modules, each of hundreds of programs would compile all of them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-quick check docs dist bench screens soak warm java clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

$(STAMP): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Ottla needs Python 3.11 or newer, $(PYTHON) is older: run make PYTHON=python3.12, for example" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "error: $(PYTHON) cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@test -x "$(UV)" || $(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.12,<1"
	@echo "installing the locked environment into $(VENV)"
	@"$(UV)" sync --quiet --locked --all-extras --inexact
	@touch $@

java:
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null 2>&1 || { \
	  echo "error: no Java found: install Java 17 or newer (Debian and Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)" >&2; exit 1; }

# Compile the kernels once and keep them, so that nothing waits for it in the middle of its work.
warm: $(STAMP)
	@$(BIN)/python -m ottla.wire.warm

demo: java $(STAMP) warm
	@$(BIN)/ottla demo

# Most tests wait for brokers: five at a time even on two cores, by file; the workers share the brokers.
WORKERS ?= 5
TOGETHER = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: java $(STAMP) warm
	@$(BIN)/pytest -m "not long" $(TOGETHER)

test-quick: $(STAMP) warm
	@$(BIN)/pytest -m "not broker and not java and not long" $(TOGETHER)

# The builder says in many lines that it has a successor.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(STAMP)
	@$(BIN)/python -m sitegen build/site-source
	@$(BIN)/python -m mkdocs build --strict --config-file build/site-source/mkdocs.yml --site-dir ../../site
	@$(BIN)/python -m sitegen.built site
	@echo "the site is in site/: open site/index.html, or for its search: $(BIN)/python -m http.server -d site -b 127.0.0.1"

dist: $(STAMP)
	@$(BIN)/python -m checks.release
	@rm -rf dist
	@$(BIN)/hatchling build -d dist -t sdist -t wheel
	@$(BIN)/python -m checks.contents dist

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --num-workers 2
	@$(BIN)/lint-imports
	@$(BIN)/python -m checks
	@$(BIN)/codespell src tests docs bench checks sitegen screens examples *.md

bench: java $(STAMP) warm
	@$(BIN)/python -m bench wire
	@$(BIN)/python -m bench produce
	@$(BIN)/python -m bench consume
	@$(BIN)/python -m bench spark
	@$(BIN)/python -m bench fleet
	@$(BIN)/python -m bench scale
	@$(BIN)/python -m bench start
	@$(BIN)/python -m bench mirror
	@$(BIN)/python -m bench audit
	@$(BIN)/python -m bench operations
	@$(BIN)/python -m bench gateway

screens: java $(STAMP) warm
	@$(BIN)/python -m screens

soak: java $(STAMP) warm
	@$(BIN)/pytest -m long $(TOGETHER)
	@OTTLA_EXAMPLES=1000 $(BIN)/pytest -q -m "not broker and not java and not long" $(TOGETHER)
	@$(BIN)/python -m tests.fuzz --inputs 10000000
	@$(BIN)/python -m tests.faults.soak --minutes 10
	@$(BIN)/python -m tests.fetch.soak --gb 5
	@OTTLA_TOPIC_HISTORIES=100 $(BIN)/pytest -q tests/topic_histories -k "through_everything or proof"
	@OTTLA_HISTORIES=100000 $(BIN)/pytest -q tests/produce/test_lane_histories.py tests/produce/test_core_histories.py
	@$(BIN)/python -m tests.spark.archive_kills --kills 20
	@$(BIN)/python -m tests.spark.sink_kills --kills 20
	@$(BIN)/python -m tests.jobs.replay_kills --kills 20
	@$(BIN)/python -m tests.mirror.kills --kills 500

clean:
	rm -rf $(VENV) build site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
