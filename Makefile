# Every target sets up what it needs in .venv first; PYTHON=python3.12 make ... chooses the interpreter.

.PHONY: help demo demo-cluster test soak bench docs clean
.NOTPARALLEL:

HEADRACE_SOAK_SECONDS ?= 600
export HEADRACE_SOAK_SECONDS

help:
	@echo "make demo    streams into views in half a minute: close, correct, kill, audit"
	@echo "make demo-cluster  the shop on Kafka, Postgres and two Spark workers, an executor and the driver killed"
	@echo "make test    lint, types and tests"
	@echo "make soak    the long random tests, about HEADRACE_SOAK_SECONDS=$(HEADRACE_SOAK_SECONDS) in all"
	@echo "make bench   measure, with peers beside"
	@echo "make docs    build the documentation into site/"
	@echo "make clean   remove .venv and everything else that was built"

demo:
	@scripts/setup
	@.venv/bin/headrace demo

demo-cluster:
	@scripts/setup dev
	@.venv/bin/python scripts/demo_cluster.py

test:
	@scripts/setup dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	@.venv/bin/python scripts/tests.py

soak:
	@scripts/setup dev
	.venv/bin/pytest -m soak --hypothesis-profile=soak --timeout=$$((HEADRACE_SOAK_SECONDS + 600))

bench:
	@scripts/setup bench
	@scripts/peers
	@.venv/bin/python -m bench

docs:
	@scripts/setup docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo "headrace: the documentation is in site/index.html"

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
