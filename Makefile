# `make help` lists the targets. Meson builds in folders build*/, which git ignores.

PREFIX ?= /usr/local
FUZZ_RUNS ?= 5000000
SOAK ?= 10000
CC ?= cc

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CC FUZZ_RUNS

DEV := -Dwerror=true -Dtests=enabled -Dfiles=enabled
# First, so that its Meson is the one that is used; torch before what depends on it.
VENV := python/requirements-build.txt tests/python/requirements-torch.txt tests/python/requirements.txt tests/python/requirements-no-deps.txt tests/requirements-ucx.txt
# Whole-program optimization, except with clang, whose linker may lack it.
RELEASE := -Dbuildtype=release -Dtests=disabled -Dprefix=$(abspath $(PREFIX)) $(if $(findstring clang,$(CC)),,-Db_lto=true)
SANITIZE := $(DEV) -Db_lundef=false -Dc_args=-fno-sanitize-recover=all

.NOTPARALLEL:
.PHONY: help demo test test-gpu lint bench bench-gpu bench-torch bench-torchft bench-hosts bench-sources bench-mpi bench-fetch bench-tls bench-ucx bench-against scale soak docs asan tsan fuzz fuzz-coverage format install wheel test-wheel clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Kill ranks of a training run and watch their peers heal them
	@scripts/install-deps build
	@test -f build/build.ninja || scripts/configure build -Dwerror=true -Dtests=disabled
	@ninja -C build cli/wherry
	@build/cli/wherry demo

test: ## Build and run all tests
	@scripts/install-deps python
	@scripts/make-venv $(VENV)
	@scripts/install-deps build files ucx test hosts mpi
	@scripts/configure build $(DEV) -Dpython=enabled
	@scripts/install-package build-python
	@scripts/run-tests build

lint: ## Check format, layers, headers, symbols, documents
	@scripts/install-deps python
	@scripts/make-venv $(VENV)
	@scripts/make-venv scripts/requirements.txt || true
	@scripts/install-deps build files ucx test lint docs mpi
	@scripts/configure build $(DEV) -Dpython=enabled
	@scripts/lint build

asan: ## Run the C tests and those of the Python extension with the address and UB sanitizers
	@scripts/install-deps python
	@scripts/make-venv $(VENV)
	@scripts/install-deps build files ucx test asan mpi
	@scripts/configure build-asan $(SANITIZE) -Dpython=enabled -Db_sanitize=address,undefined
	@scripts/run-tests build-asan sanitized

tsan: ## Run the C tests with the thread sanitizer
	@scripts/install-deps python
	@scripts/make-venv python/requirements-build.txt tests/requirements-ucx.txt
	@scripts/install-deps build files ucx test tsan
	@scripts/configure build-tsan $(SANITIZE) -Db_sanitize=thread
	@scripts/run-tests build-tsan c-only

fuzz: ## Run each fuzzer FUZZ_RUNS times (5000000)
	@scripts/install-deps build files fuzz
	@CC=clang scripts/configure build-fuzz -Dwerror=true -Dtests=disabled -Dfiles=enabled -Dfuzz=true -Db_lundef=false \
	    -Db_sanitize=address,undefined -Dc_args=-fno-sanitize-recover=all
	@scripts/run-fuzzers build-fuzz

fuzz-coverage: ## How much of the group's decoders the corpora reach
	@scripts/install-deps build test
	@scripts/configure build-coverage -Dtests=enabled -Dfiles=disabled -Dpython=disabled -Db_coverage=true
	@ninja -C build-coverage $(addprefix tests/fuzz/replay_,hello group token frame tls)
	@scripts/fuzz-coverage build-coverage -v

bench: ## Measure the C library against the limits of the machine
	@scripts/install-deps build files
	@scripts/configure build-release $(RELEASE)
	@ninja -C build-release
	@bench/run build-release

bench-ucx: ## Measure the lane ucx against plain UCX
	@scripts/install-deps python
	@scripts/make-venv python/requirements-build.txt tests/requirements-ucx.txt
	@scripts/install-deps build ucx
	@scripts/configure build-release $(RELEASE)
	@ninja -C build-release
	@bench/run build-release --only ucx

scale: ## Join, restart and stop groups of a thousand processes (one case needs root)
	@scripts/install-deps build files test hosts
	@scripts/configure build $(DEV)
	@ninja -C build tests/group_scale
	@bench/scale build

soak: ## Transfer SOAK times (10000) while ranks die and links are cut (one case needs root)
	@scripts/install-deps python
	@scripts/make-venv python/requirements-build.txt tests/requirements-ucx.txt
	@scripts/install-deps build files ucx test hosts
	@scripts/configure build $(DEV)
	@ninja -C build tests/test_chaos tests/test_chaos_blocks
	@scripts/soak build $(SOAK)

bench-torch: ## Measure the Python package against PyTorch's PGTransport
	@scripts/install-deps python
	@scripts/make-venv $(VENV)
	@scripts/install-deps build
	@scripts/install-package build-python
	@.venv/bin/python3 bench/compare_torch.py

bench-torchft: ## Measure how fast a replica of torchft heals, against HTTPTransport
	@scripts/install-deps python
	@scripts/make-venv $(VENV)
	@scripts/install-deps build
	@scripts/install-package build-python
	@.venv/bin/python3 bench/compare_torchft.py --write

bench-mpi: ## Measure between ranks of MPI, against plain MPI_Send and MPI_Recv
	@scripts/install-deps build mpi
	@scripts/configure build-release $(RELEASE)
	@ninja -C build-release
	@bench/compare_mpi.py build-release

bench-hosts: ## Measure between two hosts made of network namespaces (needs root)
	@scripts/install-deps python hosts
	@scripts/make-venv $(VENV)
	@scripts/install-deps build
	@scripts/install-package build-python
	@.venv/bin/python3 bench/compare_hosts.py

bench-sources: ## Measure receives from several sources, and with a stuck receiver (needs root)
	@scripts/install-deps python hosts
	@scripts/make-venv python/requirements-build.txt tests/requirements-ucx.txt
	@scripts/install-deps build ucx mpi
	@scripts/configure build-release $(RELEASE)
	@ninja -C build-release
	@bench/compare_sources.py build-release

bench-fetch: ## Measure `wherry fetch` against plain sockets and curl from nginx
	@scripts/install-deps build files bench
	@scripts/configure build-release $(RELEASE)
	@ninja -C build-release cli/wherry bench/bench_file
	@bench/fetch_files.py build-release --write

bench-tls: ## Measure what TLS costs, against clear text, openssl, nginx and curl (needs root)
	@scripts/install-deps build bench hosts
	@scripts/configure build-release $(RELEASE)
	@ninja -C build-release bench/bench_tls
	@bench/compare_tls.py build-release

bench-against: ## Compare the speed with commit REV (options: PAIRS= ONLY= MEAN= ROW=)
	@test -n "$(REV)" || { echo "usage: make bench-against REV=COMMIT [PAIRS=15] [ONLY=CASES] [MEAN=1.03] [ROW=1.10]" >&2; exit 2; }
	@scripts/install-deps python
	@scripts/make-venv $(VENV)
	@scripts/install-deps build files ucx mpi hosts
	@.venv/bin/python3 bench/against.py "$(REV)" $(if $(PAIRS),--pairs $(PAIRS)) $(if $(ONLY),--only "$(ONLY)") \
	    $(if $(MEAN),--mean $(MEAN)) $(if $(ROW),--row "$(ROW)")

docs: ## Write the guides and the references of C and Python into build-docs/
	@scripts/install-deps docs
	@scripts/make-docs build-docs

test-gpu: ## Run the GPU tests that scripts/pack-gpu-* have built
	@scripts/run-gpu test
	@scripts/run-gpu-python build-gpu-python test

bench-gpu: ## Measure on a GPU with what scripts/pack-gpu-* have built
	@scripts/run-gpu bench
	@scripts/run-gpu-python build-gpu-python bench

format: ## Rewrite the C files in the project's format
	@scripts/install-deps lint
	@scripts/list-sources c | xargs clang-format -i

install: ## Install below PREFIX (/usr/local); respects DESTDIR
	@scripts/install-deps build files
	@scripts/configure build-release $(RELEASE)
	@meson install -C build-release --quiet
	@scripts/say-installed build-release

wheel: ## Build the Python package into dist/: one wheel for CPython 3.11 and newer and glibc 2.28 and newer
	@scripts/install-deps python
	@scripts/make-venv python/requirements-build.txt scripts/requirements-wheel.txt
	@scripts/install-deps build files
	@scripts/make-portable-wheel build-wheel dist
	@.venv/bin/python3 scripts/make-sdist dist
	@ls -1 dist/*.whl

test-wheel: ## Build the wheel, and use it where there is nothing to build with
	@scripts/install-deps python
	@scripts/make-venv $(VENV) scripts/requirements-wheel.txt
	@scripts/install-deps build files
	@scripts/make-portable-wheel build-wheel build-wheel/dist
	@rm -f build-wheel/dist/*.tar.gz
	@.venv/bin/python3 scripts/make-sdist build-wheel/dist
	@.venv/bin/python3 scripts/check-wheel.py build-wheel/dist/*.whl build-wheel/dist/*.tar.gz

clean: ## Remove all build folders
	rm -rf build build-asan build-clang build-tsan build-fuzz build-coverage build-release build-gpu build-gpu-release build-gpu-python build-python build-wheel build-against build-docs dist
