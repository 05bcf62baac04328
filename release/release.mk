# SPDX-License-Identifier: Apache-2.0
# What people download, in dist/ (RELEASING.md). Included by the top Makefile; the tools are the extra `release` of
# pyproject.toml, the compiler for old C libraries and other processors is that of native/cross.mk.
DIST ?= dist
PROCESSORS ?= x86_64 aarch64
RELEASE_TOOLS := $(BUILD)/venv/release.stamp
# This processor's library is the one that the tests run; another one's is the cross compiler's.
HERE := $(shell uname -m 2>/dev/null)
shipped_library = $(if $(filter $(HERE),$(1)),$(BUILD),$(BUILD)/$(1)-2.17)/shipped/libvcuda.so

.PHONY: release dist sdist wheels chart sbom fixtures
release: $(RELEASE_TOOLS) $(CROSS)  ## what a release would be, in dist/: VERSION=1.2.3; CUT=yes cuts this tree, IMAGE=yes adds the image's root
	@test -n "$(VERSION)" || { echo "error: which one? make release VERSION=1.2.3" >&2; exit 2; }
	@$(PY) -m release "$(VERSION)" $(if $(filter yes,$(CUT)),--cut) $(if $(filter yes,$(IMAGE)),--image) $(if $(DATE),--date "$(DATE)")

dist: sdist wheels chart sbom  ## the packages, the chart and the list of components, in dist/

sdist: $(RELEASE_TOOLS)  ## the sources that pip builds, as dist/gigaslice-<version>.tar.gz
	@mkdir -p $(DIST)
	@echo "  SDIST  $(DIST)"
	@$(PY) -m build --sdist --outdir $(DIST) . > $(BUILD)/sdist.log 2>&1 || { tail -n 20 $(BUILD)/sdist.log >&2; exit 1; }

wheels: sdist $(CROSS) $(addprefix wheel-,$(PROCESSORS))  ## wheels for every glibc from 2.17 on; PROCESSORS="x86_64 aarch64"

.PHONY: wheel-x86_64 wheel-aarch64
wheel-x86_64 wheel-aarch64: wheel-%: sdist $(CROSS) | $(VENV)
	$(if $(filter $(HERE),$*),+$(Q)$(MAKE) --no-print-directory native-shipped,$(call cross,$*,shipped/libvcuda.so))
	$(PY) tests/native/check_library.py $(patsubst %/shipped/libvcuda.so,%/libvcuda.so,$(call shipped_library,$*))
	$(PY) -m release.wheels $* --library $(call shipped_library,$*) --compiler $(ZIG)-$* \
	  --sdist "$$($(PY) -m release.names sdist $(DIST))" --dist $(DIST)
	install -m 644 $(call shipped_library,$*).debug $(DIST)/"$$($(PY) -m release.names debug $*)"

chart: $(VENV)  ## the chart, as dist/gigaslice-<version>.tgz
	@mkdir -p $(DIST)
	$(BIN)/helm package deploy/helm/gigaslice --destination $(DIST)

sbom: wheel-$(HERE)  ## what an installation consists of (CycloneDX)
	$(PY) -m release.sbom "$$($(PY) -m release.names wheel $(DIST))" $(DIST)/"$$($(PY) -m release.names sbom)"

$(RELEASE_TOOLS): pyproject.toml | $(VENV)
	@echo "venv: installing the release tools of pyproject.toml (once)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

fixtures: all native-shipped fakedriver native-clients  ## what this version writes, for the upgrade tests of all later ones
	$(PY) -m tests.releases.make

.PHONY: test-dist
test-dist: $(if $(VERSION),,dist) $(RELEASE_TOOLS) fakedriver  ## make dist (or with VERSION= what is there), installed and started; docs/proofs/distributions.md
	$(PY) -m tests.packaging.distributions $(VERSION)
