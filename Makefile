# make demo | make test | make bench | make docs: each sets up what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# one thread a process: the tests run three processes, one of which waits, and small matrices do not gain from more
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
OFFLINE := HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1

DENO_VERSION := 2.9.8
TOOLS := .tools/deno-$(DENO_VERSION)
DENO := $(TOOLS)/bin/deno
SCRIPTS := $(wildcard src/anisoscope/report/page/assets/*/*.js)
export DENO_DIR := $(CURDIR)/.tools/cache
export DENO_NO_UPDATE_CHECK := 1
export PYTHONDONTWRITEBYTECODE :=

PEERS := .tools/peers

.PHONY: demo test lint js types pytest bench bench-peers docs browser clean faults fuzz differential audit test-lowest

demo: $(READY)
	$(OFFLINE) $(BIN)/anisoscope demo --out demo

test: lint types pytest

lint: $(READY) js
	$(BIN)/ruff check src tests scripts
	$(BIN)/ruff format --check src tests scripts

# the scripts of the page; deno comes as a wheel, and needs no network once it is here
js: $(DENO)
	$(DENO) fmt --check --quiet
	$(DENO) lint --quiet
	$(DENO) check --quiet $(SCRIPTS)

$(DENO): | $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --target $(TOOLS) deno==$(DENO_VERSION)
	@$(DENO) cache --quiet npm:s3rver@3.7.1 || echo "no S3 server here: its tests are skipped"
	@$(DENO) cache --quiet --no-lock npm:azurite@3.36.0 || echo "no Azure server here: its tests are skipped"

types: $(READY)
	$(BIN)/pyright

pytest: $(READY) browser $(DENO)
	$(ONE_THREAD) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# about 40 minutes on two idle cores; writes docs/studies/tables/bench.json, docs/benchmarks.md and the model in docs/scale.md
bench: $(READY)
	$(OFFLINE) $(BIN)/python tests/benchmarks/run.py
	$(BIN)/python scripts/make_benchmarks.py

# other libraries to compare with, in an environment of their own
bench-peers: $(READY)
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet -c constraints.txt transformer-lens==4.3.0 nnsight==0.8.1

# the long harnesses: each appends to a log that it reads back, so the same command goes on; `--summary` prints the table
faults: $(READY)
	$(ONE_THREAD) $(OFFLINE) nice $(BIN)/python tests/faults/kills.py --kills 1000 --log faults.jsonl

fuzz: $(READY)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet atheris || \
	  echo "no atheris for this Python: mutations without guidance"
	$(ONE_THREAD) $(OFFLINE) nice $(BIN)/python tests/fuzz/many.py --inputs 1000000 --log fuzz.jsonl

differential: $(READY)
	$(ONE_THREAD) $(OFFLINE) nice $(BIN)/python tests/differential/many.py --log differential.jsonl

# known vulnerabilities of what is installed; needs PyPI, and says so where it cannot be reached
audit: $(READY)
	@test -x $(BIN)/pip-audit || $(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python scripts/audit.py

# the lowest versions that pyproject.toml allows, in an environment of their own
test-lowest: $(READY)
	@test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	$(BIN)/python scripts/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet -c .venv-lowest/constraints.txt -e '.[all,dev]'
	$(ONE_THREAD) .venv-lowest/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore=tests/browser

docs: $(READY)
	@test -x $(BIN)/zensical || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/python scripts/make_reference.py
	$(BIN)/zensical build --strict -f zensical.toml

browser: $(READY)
	@command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || \
	  { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && \
	    { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }; } || \
	  echo "no Chromium here: the browser tests are skipped"

# pip fetches torch: it knows where a machine keeps a build of its own. uv fetches the rest in a sixth of the time; where uv
# is not to be had, pip does. Modules are compiled when they are first imported: most never are.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile torch
	{ $(PIP) uv && $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[all,dev]'; } || $(PIP) -e '.[all,dev]'
	@touch $@

clean:
	rm -rf $(VENV) .venv-lowest demo site .pytest_cache .ruff_cache .hypothesis
