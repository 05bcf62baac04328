# SPDX-License-Identifier: Apache-2.0
# The library and its tests built by another compiler: for aarch64, and for a C library of 2012. Included by native.mk;
# opt-in, as the compiler (zig, from the package index) is 80 MiB. Results go to build/<processor>-2.17/.
# The compiler brings the C library's symbol lists, so what links here needs nothing newer than glibc 2.17.
CROSS := $(BUILD)/venv/cross.stamp
COMMA := ,
ZIG   := $(abspath $(BUILD))/zig/cc

# It knows no -Bsymbolic-functions: -Bsymbolic says the same of a library that exports functions alone; not -z
# noseparate-code, which is what it does anyway; no LTO plugin of gcc's; not two of gcc's optimisations that the
# simulated driver turns off, whose warnings are gcc's business.
cross = +$(Q)$(MAKE) --no-print-directory -C $(CURDIR) BUILD=$(BUILD)/$(1)-2.17 CC="$(ZIG)-$(1)" PY=$(PY) \
  OBJCOPY="$(abspath $(PY)) -m ziglang objcopy" CUDA_INCLUDE=$(abspath $(CUDA_INCLUDE)) NATIVE_LTO= FAKE_CFLAGS='$(filter-out -fno-ipa-icf -fno-tree-slp-vectorize -Werror,$(FAKE_CFLAGS)) -w' \
  NATIVE_LDFLAGS='$(subst -Bsymbolic-functions,-Bsymbolic,$(filter-out %$(COMMA)noseparate-code,$(NATIVE_LDFLAGS))) -nostdlib' \
  NATIVE_LIBC='$(addprefix $(BUILD)/zig/stubs-$(1)/,libc.so.6 libld.so.2)' \
  $(addprefix $(BUILD)/$(1)-2.17/,$(2))
CROSS_TESTED := fakedriver/libcuda.so fakedriver/libnvidia-ml.so $(addprefix native/clients/,client lookup chain.so next_user.so tail.so)

.PHONY: native-aarch64 test-aarch64 test-oldlibc
native-aarch64: $(VENV) $(CROSS)  ## build the library for aarch64: build/aarch64-2.17/libvcuda.so
	$(call cross,aarch64,libvcuda.so)
	$(PY) tests/native/check_library.py $(BUILD)/aarch64-2.17/libvcuda.so

test-aarch64: native-aarch64  ## the aarch64 build under qemu-user (Debian's); writes docs/proofs/aarch64.md
	$(call cross,aarch64,native/release/run_tests $(CROSS_TESTED))
	$(PY) -m tests.cross.aarch64

test-oldlibc: $(BUILD)/libvcuda.so $(CROSS)  ## the shipped library on the oldest glibc there is to have; writes docs/proofs/oldlibc.md
	$(call cross,x86_64,$(CROSS_TESTED))
	$(PY) -m tests.cross.oldlibc

# stubs-PROCESSOR: the compiler's C library of 2.17, which it makes when it first links something. The library is linked
# with libc and ld.so by name, as the compiler's own list has libpthread first, and a process may not have that loaded.
$(CROSS): pyproject.toml native/cross.mk | $(VENV)
	@echo "venv: installing the cross compiler of pyproject.toml (80 MiB, once)"
	@rm -rf $(BUILD)/venv/lib/python3*/site-packages/ziglang*
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[cross]'
	@mkdir -p $(dir $(ZIG))
	@set -e; for processor in aarch64 x86_64; do cache=$(abspath $(BUILD))/zig/cache-$$processor; \
	  printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%s ZIG_LOCAL_CACHE_DIR=%s\nexec %s -m ziglang cc -target %s-linux-gnu.2.17 "$$@"\n' \
	    $$cache $$cache $(abspath $(PY)) $$processor > $(ZIG)-$$processor; \
	  chmod +x $(ZIG)-$$processor; \
	  echo 'int main(void) { return 0; }' > $(BUILD)/zig/empty.c; \
	  $(ZIG)-$$processor -O2 -o $(BUILD)/zig/empty-$$processor $(BUILD)/zig/empty.c; \
	  ln -sfn "$$(dirname "$$(find $$cache -name libc.so.6 | head -1)")" $(BUILD)/zig/stubs-$$processor; done
	@touch $@
