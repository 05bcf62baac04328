# SPDX-License-Identifier: Apache-2.0
# Gigaslice. `make help` lists what there is to type; python3 (3.10+), gcc and make are all that is needed.
# Every target sets up what it needs: Python packages and the CUDA headers go to build/venv, results to build/.
# The parts keep their own rules: native/native.mk, tests/fakedriver/fakedriver.mk, proto/proto.mk, release/release.mk.

SHELL  := /bin/bash
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

BUILD  := build
PYTHON ?= python3
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/$(BUILD)/hypothesis
ifeq ($(origin CC),default)
CC     := gcc
endif

# With CUDA_INCLUDE given (the directory of cuda.h and nvml.h) the library builds without build/venv.
ifdef CUDA_INCLUDE
VENV   :=
else
VENV   := $(BUILD)/venv/installed.stamp
CUDA_INCLUDE := $(BUILD)/include
endif
PY     := $(BUILD)/venv/bin/python
BIN    := $(BUILD)/venv/bin
EXTENSION := $(BUILD)/extension.stamp
TREE := gigaslice/roles/dataset_node/sources/_tree.c
EXTENSION_SOURCES := vcuda/_build.py setup.py $(wildcard native/base/*.[ch] native/base/*.def native/shm/*.[ch]) \
  $(TREE)

.PHONY: model model-quick all programs native extension extension-asan extension-check demo demo-cluster pictures test test-long check lint bench sizing test-gpu test-cluster test-kills test-claim-kills test-node-kills test-nvidia-smi test-runtimes test-preloads test-browser proto fmt image image-root test-image lock man tables names chart-schema chart-readme manifests clean help

all: native extension  ## build the library and the Python bindings

-include native/native.mk tests/fakedriver/fakedriver.mk tests/fuzz/fuzz.mk proto/proto.mk release/release.mk

# Apart from what they test, so that it can be compiled on all cores and tested as ever.
programs: all fakedriver native-clients $(foreach flavour,release asan tsan,$(BUILD)/native/$(flavour)/run_tests)  ## build all that test and check run: make -j programs

native: $(BUILD)/libvcuda.so  ## build build/libvcuda.so

extension: $(EXTENSION)  ## build the Python bindings in place

demo: all fakedriver  ## one node, two pods with 8 and 12 GiB, real programs in them
	$(PY) -m tests.demo

demo-cluster: all fakedriver  ## three simulated nodes with all of the cluster's parts and the page; SECONDS=, CONTROL_PLANE=auto|real|stand-ins
	$(PY) -m tests.demo.cluster $(if $(SECONDS),--seconds $(SECONDS)) $(if $(CONTROL_PLANE),--control-plane $(CONTROL_PLANE))

pictures: all fakedriver  ## the documentation's pictures of the web page, where Chromium is installed with chromedriver
	$(PY) -m tests.demo.cluster.pictures

# Four at a time, since most of them wait for processes of theirs; those that measure time run alone.
ALONE := tests/integration/test_native_share.py tests/integration/test_native_time_slices.py \
         tests/integration/agent/test_time_slices.py
test: all fakedriver native-test  ## every test that needs neither GPU nor cluster
	$(PY) -m pytest -n 4 --dist worksteal $(LONG) $(ALONE:%=--ignore %) --ignore tests/cluster
	$(PY) -m pytest $(LONG) $(ALONE)

test-long:  ## the same with all seeds
	$(MAKE) test LONG=--long

check: all lint names workflows licences proto-check native-check extension-check native-asan native-tsan extension-asan fuzz-replay model-quick  ## lint, layers, names without a test, workflows, licences, symbols, sanitizers, model

lint: $(VENV)  ## formatting, lint, types, layer contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir $(BUILD)/import-linter-cache

names: $(VENV) $(EXTENSION)  ## whether each metric and each hook is named in a test
	$(PY) -m tests.unit.names.tested

.PHONY: workflows licences publish
workflows: $(VENV)  ## the public CI's workflows: whether they are right, and what could be misused in them
	$(BIN)/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml
	$(BIN)/zizmor --offline --no-progress --quiet --persona=auditor .github

licences: $(VENV)  ## whether each file has a licence (REUSE)
	$(BIN)/reuse lint --lines

model-quick: $(VENV)  ## the small configurations of the ledger's model, where spin is installed
	$(PY) -m tests.model.run quick

model: $(VENV)  ## all of them, and the mutations that must be found; takes long and up to 8 GiB
	$(PY) -m tests.model.run all --write

bench: all fakedriver  ## the figures of docs/benchmarks.md (PART=driver, …: some of them)
	CC="$(CC)" CUDA_INCLUDE="$(CUDA_INCLUDE)" $(PY) -m tests.bench $(PART)

sizing: all fakedriver  ## the figures of docs/sizing.md: memory, CPU, requests and bytes of each part, some ten minutes
	$(PY) -m tests.bench.sizing node --pods 40
	$(PY) -m tests.bench.sizing dataset
	$(PY) -m tests.bench.sizing cluster --nodes 200 --pods 2000
	$(PY) -m tests.bench.sizing cluster --nodes 1000 --pods 10000 --calls 100
	$(PY) -m tests.bench.sizing cluster --nodes 5000 --pods 50000 --gpu-objects off --calls 50

test-runtimes: all fakedriver native-clients  ## NVIDIA's CUDA runtimes 11.7 to 13.5 from the package index; writes docs/runtimes.md
	$(PY) -m tests.native.runtimes

test-browser: $(VENV)  ## the controller's web page in a headless Chromium, where one is installed with chromedriver
	$(PY) -m pytest -n 0 -rs -o python_files='check_*.py' tests/browser

test-preloads: all fakedriver native-clients  ## Debian's allocators and OpenMP beside the library; writes docs/proofs/preloads.md
	$(PY) -m tests.cross.preloads

test-gpu:  ## this machine's GPU: GROUP=A|B|C|D, CASE=, BUDGET=seconds, OUT=folder (tests/gpu/README.md)
	@PYTHON="$(PYTHON)" tests/gpu/run $(if $(GROUP),--group $(GROUP)) $(addprefix --case ,$(CASE)) \
	  $(if $(BUDGET),--budget $(BUDGET)) $(if $(OUT),--out "$(OUT)")

test-cluster: all fakedriver  ## against real etcd, kube-apiserver and kube-scheduler, which K8S_BIN or PATH must have; else skipped
	$(PY) -m pytest -n 0 -rs tests/cluster

test-kills: all  ## a node agent killed some hundred times under load, and handed over; KILLS=500, about twenty minutes
	$(PY) -m tests.integration.agent.storm --kills $(or $(KILLS),500)

test-claim-kills: all  ## a node of claims on which everything is killed some hundred times, against the API server's books; KILLS=500
	$(PY) -m tests.integration.claims.storm --kills $(or $(KILLS),500)

test-node-kills: all fakedriver  ## likewise on a node with a real kubelet, which K8S_NODE… name (tests/cluster/node_kills.py)
	$(PY) -m tests.cluster.node_kills --kills $(or $(KILLS),200)

test-nvidia-smi: all fakedriver native-clients  ## download Debian's nvidia-smi packages, run them under the library
	$(PY) -m tests.nvidia_smi.run

fmt: $(VENV)  ## format the Python code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# One architecture: an image. Several: a manifest (podman) or a build in the builder's store (docker), to be pushed:
#   make image PLATFORMS=linux/amd64,linux/arm64 IMAGE=registry.example.com/gigaslice
IMAGE ?= gigaslice
PLATFORMS ?=
BASE_IMAGE ?=
image:  ## build the container image, gigaslice:<version> and :latest, with podman or docker (PLATFORMS, IMAGE, BASE_IMAGE)
	@tool=$$(command -v podman || command -v docker) || \
	  { echo "error: neither podman nor docker is installed; one of them builds the image" >&2; exit 3; }; \
	version=$$(sed -n 's/^VERSION = "\(.*\)"/\1/p' vcuda/version.py); \
	base=($(if $(BASE_IMAGE),--build-arg "BASE_IMAGE=$(BASE_IMAGE)")); set -x; \
	case "$(PLATFORMS):$${tool##*/}" in \
	:*) "$$tool" build "$${base[@]}" --tag "$(IMAGE):$$version" --tag "$(IMAGE):latest" . ;; \
	*:podman) "$$tool" build "$${base[@]}" --platform "$(PLATFORMS)" --manifest "$(IMAGE):$$version" . ;; \
	*) "$$tool" buildx build "$${base[@]}" --platform "$(PLATFORMS)" --tag "$(IMAGE):$$version" --tag "$(IMAGE):latest" . ;; \
	esac

publish:  ## a step of the release workflow: STEP=check|base|image|index|chart|files|release|proposal, with TAG, IMAGE and DIGEST (.ci/publish)
	@.ci/publish "$(STEP)"

image-root: $(VENV)  ## the image, built on a local Debian root by buildah; writes docs/image.md. As root; minutes (tests/image)
	$(PY) -m tests.image.root
	$(PY) -m tests.image.sizes

test-image: all fakedriver  ## every role started from that root as the chart says; after make image-root, as root
	$(PY) -m pytest -n 0 -rs -o python_files='check_*.py' tests/image

man: all  ## the manual pages of both commands, in build/man
	mkdir -p $(BUILD)/man
	for one in gigaslice vcuda; do $(BIN)/$$one man > $(BUILD)/man/$$one.1 || exit 1; done

lock: $(VENV)  ## the newest Python packages for the image, by version and hash (deploy/image)
	$(PY) -m deploy.image.lock

tables: $(VENV) $(EXTENSION)  ## the tables of docs, from the code: after a change of a setting, metric, event, option
	$(PY) -m tests.unit.docs.tables

chart-schema: $(VENV)  ## the schema of the chart's values, from the settings of all roles
	$(PY) -m deploy.helm.schema

chart-readme: chart-schema  ## the chart's README.md, from its values and their schema
	$(PY) -m deploy.helm.readme

manifests: $(VENV)  ## daemonset.yaml, deploy/*.yaml and the chart's list of images, from the chart
	$(PY) -m deploy.helm.manifests

clean:  ## remove everything that was built
	rm -rf $(BUILD) dist *.egg-info vcuda/_native*.so vcuda/_lib gigaslice/roles/dataset_node/sources/_tree*.so

help:  ## this list
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/:.*  ## /\t/' | sort | expand -t 14 || [ $$? = 141 ] # SIGPIPE: read enough

# --- set-up -----------------------------------------------------------------------------------------------------

$(BUILD)/venv/installed.stamp: pyproject.toml
	@PYTHON="$(PYTHON)" CC="$(CC)" .ci/preflight
	@PYTHON="$(PYTHON)" .ci/venv $(BUILD)/venv
	@cd $(BUILD) && ln -sfn "$$(dirname venv/lib/python3*/site-packages/nvidia/cu*/include/cuda.h)" include
	@touch $@

$(EXTENSION): $(EXTENSION_SOURCES) | $(VENV)
	@echo "extension: compiling the Python bindings"
	@$(PY) setup.py --quiet build_ext --force --inplace --build-temp $(BUILD)/extension
	@touch $@

extension-check: $(EXTENSION)  ## names of the C library and of Python that the extensions use
	$(PY) tests/native/check_extensions.py vcuda/_native.abi3.so gigaslice/roles/dataset_node/sources/_tree.abi3.so

# The dataset service's extension, and its tests, under address and undefined-behaviour sanitizers.
extension-asan: $(BUILD)/extension-asan/_tree.abi3.so all
	LD_PRELOAD=$$($(CC) -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	  $(PY) -m tests.native.sanitized_tree $<

$(BUILD)/extension-asan/_tree.abi3.so: $(TREE) | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(CC) -std=c17 -O1 -g -fPIC -shared -Wall -Wextra -Werror $(NATIVE_ASAN) -DPy_LIMITED_API=0x030A0000 \
	  -I$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))') -o $@.new $< && mv $@.new $@
