# The front door: `make help` lists the targets. Meson does the building, in folders build*/ that git ignores.

PREFIX ?= /usr/local
FUZZ_RUNS ?= 5000000
CC ?= cc

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CC FUZZ_RUNS

DEV := -Dwerror=true -Dtests=enabled
# Whole-program optimisation where the compiler and its linker are known to go together.
RELEASE := -Dbuildtype=release -Dtests=disabled -Dprefix=$(PREFIX) $(if $(findstring clang,$(CC)),,-Db_lto=true)
SANITIZE := $(DEV) -Db_lundef=false -Dc_args=-fno-sanitize-recover=all

.NOTPARALLEL:
.PHONY: help demo test lint bench asan tsan fuzz format install clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Kill ranks of a training run, and watch their peers heal them
	@scripts/install-deps build
	@test -f build/build.ninja || scripts/configure build -Dwerror=true -Dtests=disabled
	@ninja -C build cli/wherry
	@build/cli/wherry demo

test: ## Build and run all tests
	@scripts/install-deps build test
	@scripts/make-venv tests/python/requirements.txt
	@scripts/configure build $(DEV)
	@scripts/run-tests build

lint: ## Check format, layers, headers, symbols, documents
	@scripts/install-deps build test lint
	@scripts/make-venv scripts/requirements.txt || true
	@scripts/configure build $(DEV)
	@scripts/lint build

asan: ## Run the C tests under the address and undefined-behaviour sanitizers
	@scripts/install-deps build test asan
	@scripts/configure build-asan $(SANITIZE) -Db_sanitize=address,undefined
	@scripts/run-tests build-asan c-only

tsan: ## Run the C tests under the thread sanitizer
	@scripts/install-deps build test tsan
	@scripts/configure build-tsan $(SANITIZE) -Db_sanitize=thread
	@scripts/run-tests build-tsan c-only

fuzz: ## Run each fuzzer FUZZ_RUNS times (5000000)
	@scripts/install-deps build fuzz
	@CC=clang scripts/configure build-fuzz -Dwerror=true -Dtests=disabled -Dfuzz=true -Db_lundef=false \
	    -Db_sanitize=address,undefined -Dc_args=-fno-sanitize-recover=all
	@scripts/run-fuzzers build-fuzz

bench: ## Build for speed and measure
	@scripts/install-deps build
	@scripts/configure build-release $(RELEASE)
	@ninja -C build-release
	@bench/run build-release

format: ## Rewrite the C files in the project's format
	@scripts/install-deps lint
	@scripts/list-sources c | xargs clang-format -i

install: ## Install below PREFIX (/usr/local); honours DESTDIR
	@scripts/install-deps build
	@scripts/configure build-release $(RELEASE)
	@meson install -C build-release

clean: ## Remove what was built
	rm -rf build build-asan build-clang build-tsan build-fuzz build-release
