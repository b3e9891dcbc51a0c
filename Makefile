# The commands of this project. `make help` lists them; each works from a fresh clone.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup build train test tsan torture bench bench-peers format lint docs install clean distclean
MAKEFLAGS += --no-print-directory
PREFIX ?= /usr/local
POINTS ?= 300
STATES ?= 200

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: ## install system packages (root or sudo) and .venv
	@scripts/setup.sh

build: setup ## build everything in build/ (Release)
	@scripts/build.sh release

train: ## set up, build, and fine-tune SmolLM2-135M with ZeRO-3 on two ranks
	@scripts/train_main.sh

test: ## set up, build and run every test
	@scripts/test.sh

tsan: setup ## thread sanitizer over what ranks and threads of one host share
	@scripts/test.sh tsan

torture: build ## kill saves, and lose the power in the middle of them (POINTS=300 STATES=200)
	@DS_TORTURE_STATES=$(STATES) build/bin/test_store --gtest_filter='*Faults*:Damage*'
	@.venv/bin/python scripts/torture.py --points $(POINTS)

bench: build ## our own figures
	@.venv/bin/python benchmarks/compare.py --systems ours $(BENCH)

bench-peers: build ## our figures beside DDP, FSDP2 and DeepSpeed in one run (BENCH="--rows tiny --repeat 1" for a short one)
	@scripts/bench_peers.sh $(BENCH)

format: setup ## clang-format over all C++ files
	@scripts/format.sh --write

lint: setup ## formatting, layers, sizes, hygiene
	@scripts/format.sh --check
	@.venv/bin/python scripts/check_layers.py
	@.venv/bin/python scripts/check_sizes.py
	@.venv/bin/python scripts/check_hygiene.py

docs: build ## regenerate generated pages and check links
	@.venv/bin/python scripts/make_docs.py
	@.venv/bin/python scripts/check_links.py

install: build ## install library, headers, CMake package and tools under PREFIX
	@cmake --install build --prefix "$(PREFIX)"

clean: ## remove build folders and runs
	@rm -rf build build-asan build-tsan runs

distclean: clean ## also remove virtual environments and converted models
	@rm -rf .venv .venv-peers .cache
