# SPDX-License-Identifier: Apache-2.0
# The vCUDA library, its checks and its unit tests. Included by the top Makefile; nothing but gcc and make is needed
# besides NVIDIA's headers. Include paths are the architecture: base <- shm <- table, hooks <- cuda, nvml <- the root.
BUILD ?= build
# `make V=1` shows the commands.
Q ?= $(if $(V),,@)
CC ?= gcc
PY ?= $(BUILD)/venv/bin/python
CUDA_INCLUDE ?= $(shell $(PY) -c 'import nvidia, pathlib; print(next(p.parent for d in nvidia.__path__ for p in pathlib.Path(d).glob("*/include/cuda.h")))')
NVML_INCLUDE ?= $(CUDA_INCLUDE)

# Optimised, hidden, and nothing that a glibc of 2013 lacks: no fortified functions, no thread library. Messages are
# cut to their buffers on purpose, and functions that NVIDIA calls deprecated are hooked like others. Tables of typed
# pointers are filled through memcpy and void **.
NATIVE_CFLAGS := -std=c17 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror -ftls-model=initial-exec \
  -Wno-format-truncation -Wno-deprecated-declarations -U_FORTIFY_SOURCE -fno-strict-aliasing -MMD -MP
# Code and constants in one mapping: two mappings less in every process, and fewer page faults. Sections in the order of
# their names, as base/place.h has it.
NATIVE_LDFLAGS := -shared -nostartfiles -Wl,-z,nodelete -Wl,-z,defs -Wl,-Bsymbolic-functions -Wl,-z,relro -Wl,--version-script=native/exports.map \
  -Wl,--as-needed -Wl,--build-id=sha1 -Wl,-z,noseparate-code -Wl,--sort-section=name
NATIVE_HEADERS = -isystem $(CUDA_INCLUDE) -isystem $(NVML_INCLUDE)

NATIVE_I_base  := -Inative/base
NATIVE_I_shm   := $(NATIVE_I_base) -Inative/shm
NATIVE_I_table := $(NATIVE_I_base) -Inative/table
NATIVE_I_hooks  = $(NATIVE_I_shm) -Inative/hooks $(NATIVE_HEADERS)
NATIVE_I_cuda   = $(NATIVE_I_hooks) -Inative/table -Inative/cuda
NATIVE_I_nvml   = $(NATIVE_I_hooks) -Inative/nvml
NATIVE_I_settings := $(NATIVE_I_shm) -Inative
NATIVE_I_root   = $(NATIVE_I_hooks) -Inative/table -Inative/cuda -Inative/nvml -Inative

NATIVE_SOURCES := $(wildcard native/*.c $(addprefix native/,$(addsuffix /*.c,base shm table hooks cuda nvml)) native/hooks/*.S)
NATIVE_OBJECTS := $(patsubst native/%,%.o,$(NATIVE_SOURCES))
NATIVE_ROOT_OBJECTS := $(patsubst native/%,%.o,$(wildcard native/*.c))

# The place of the file $(1) in the list $(2), "12/83", by which one sees how far a build is; empty for a file that is not in
# it. The list is cut off at the file, and what is left of it counted.
space := $(subst x, ,x)
place = $(if $(filter $(1),$(2)),$(words x $(subst |, ,$(firstword $(subst |$(1)|,| ,|$(subst $(space),|,$(2))|))))/$(words $(2)))

# Every file is made under another name: what is there is whole, however a build was ended.
# $(1) flavour, $(2) extra compiler flags, $(3) directory, $(4) suffix pattern
define native_rule
$(BUILD)/native/$(1)/$(3)%.c.o: native/$(3)%.c | $(VENV)
	@mkdir -p $$(@D)
	@echo "  CC  $$(call place,$$@,$(addprefix $(BUILD)/native/$(1)/,$(NATIVE_OBJECTS)))  $$@"
	$$(Q)$$(CC) $$(NATIVE_CFLAGS) $(2) $$(NATIVE_I_$(4)) -MT $$@ -MF $$(@:.o=.d) -c $$< -o $$@.new && mv $$@.new $$@
endef
define native_flavour
$(foreach dir,base shm table hooks cuda nvml,$(call native_rule,$(1),$(2),$(dir)/,$(dir))
)
$(BUILD)/native/$(1)/hooks/%.S.o: native/hooks/%.S
	@mkdir -p $$(@D)
	@echo "  CC  $$(call place,$$@,$(addprefix $(BUILD)/native/$(1)/,$(NATIVE_OBJECTS)))  $$@"
	$$(Q)$$(CC) -fPIC -c $$< -o $$@.new && mv $$@.new $$@
$(addprefix $(BUILD)/native/$(1)/,$(NATIVE_ROOT_OBJECTS)): $(BUILD)/native/$(1)/%.c.o: native/%.c | $(VENV)
	@mkdir -p $$(@D)
	@echo "  CC  $$(call place,$$@,$(addprefix $(BUILD)/native/$(1)/,$(NATIVE_OBJECTS)))  $$@"
	$$(Q)$$(CC) $$(NATIVE_CFLAGS) $(2) $$(if $$(filter init,$$*),$$(NATIVE_I_root),$$(NATIVE_I_settings)) -MT $$@ -MF $$(@:.o=.d) -c $$< -o $$@.new && mv $$@.new $$@
$(BUILD)/native/$(1)/libvcuda.so: $(addprefix $(BUILD)/native/$(1)/,$(NATIVE_OBJECTS)) native/exports.map
	@echo "  LD  $$@"
	$$(Q)$$(CC) $$(NATIVE_LDFLAGS) $(2) -o $$@.new $$(filter %.o,$$^) $$(NATIVE_LIBC) && mv $$@.new $$@
-include $(wildcard $(BUILD)/native/$(1)/*.d $(BUILD)/native/$(1)/*/*.d)
endef

NATIVE_ASAN := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
NATIVE_TSAN := -fsanitize=thread
# Link-time optimisation: charge, allocation table and wrapper are three layers in the source and one function in the hot path,
# which saves 8 of 38 ns.
# As one unit: with several, each has small variables of its own, on pages of its own.
NATIVE_LTO := -flto=auto -flto-partition=one --param=inline-unit-growth=400
$(eval $(call native_flavour,release,$(NATIVE_LTO)))
$(eval $(call native_flavour,asan,$(NATIVE_ASAN)))
$(eval $(call native_flavour,tsan,$(NATIVE_TSAN)))

$(BUILD)/libvcuda.so: $(BUILD)/native/release/libvcuda.so
	@cp $< $@.new && mv $@.new $@

# What is installed: without symbols and debug data, nine tenths of the file. Those go into a file of their own, which
# debuggers find by its name in the library, or by the build id.
OBJCOPY ?= objcopy
SHIPPED := $(BUILD)/shipped
.PHONY: native-shipped
native-shipped: $(SHIPPED)/libvcuda.so
$(SHIPPED)/libvcuda.so: $(BUILD)/libvcuda.so
	@mkdir -p $(@D)
	@echo "  STRIP  $@"
	$(Q)$(OBJCOPY) --only-keep-debug $< $@.debug.new && mv $@.debug.new $@.debug
	$(Q)cd $(@D) && $(OBJCOPY) --strip-all --add-gnu-debuglink=$(@F).debug $(abspath $<) $(@F).new && mv $(@F).new $(@F)

# --- unit tests: everything but init.c, so that no test has hooks in its own process ----------------------------
NATIVE_TEST_SOURCES := $(wildcard tests/native/*.c)
NATIVE_TEST_OBJECTS := $(patsubst native/%,%.o,$(wildcard native/base/*.c native/shm/*.c native/table/*.c) $(addprefix native/cuda/,format.c ranges.c stream_state.c stream_poll.c stream_table.c) native/config.c native/directory.c native/head.c native/mounts.c)

# $(1) flavour, $(2) extra compiler flags
define native_tests
$(BUILD)/native/$(1)/tests/%.c.o: tests/native/%.c | $(VENV)
	@mkdir -p $$(@D)
	@echo "  CC  $$(call place,$$@,$(patsubst tests/native/%,$(BUILD)/native/$(1)/tests/%.o,$(NATIVE_TEST_SOURCES)))  $$@"
	$$(Q)$$(CC) $$(NATIVE_CFLAGS) $(2) -pthread $$(NATIVE_I_cuda) -Inative -Itests/native -MT $$@ -MF $$(@:.o=.d) -c $$< -o $$@.new && mv $$@.new $$@
$(BUILD)/native/$(1)/run_tests: $(patsubst tests/native/%,$(BUILD)/native/$(1)/tests/%.o,$(NATIVE_TEST_SOURCES)) \
    $(addprefix $(BUILD)/native/$(1)/,$(NATIVE_TEST_OBJECTS))
	@echo "  LD  $$@"
	$$(Q)$$(CC) $(2) -pthread -o $$@.new $$^ && mv $$@.new $$@
endef
$(foreach flavour,release asan tsan,$(eval $(call native_tests,$(flavour),$(if $(filter asan,$(flavour)),$(NATIVE_ASAN))$(if $(filter tsan,$(flavour)),$(NATIVE_TSAN)))))

.PHONY: native-test native-asan native-tsan native-check
native-test: $(BUILD)/native/release/run_tests native-clients  ## the unit tests of the C code
	$< --jobs 2

# Without the tests that fork or single-step thousands of processes: a sanitizer makes each of those a hundred times
# dearer and finds nothing in the thousandth that it had not found in the first. Leaks are not looked for in forked
# children that _Exit. Nor with those that take away all memory, of which the sanitizer needs some itself.
FORK_HEAVY := stream_state_without_memory_for_more|table_without_memory_takes_back|kill_.*|step_(killed|who_empties|who_fills)_.*|ledger_full_table|ledger_slots_are_reused|publish_is_atomic|race_last_piece_has_one_winner
# What has threads; everything else has nothing for the thread sanitizer to see.
THREADED := race_threads_never_over|split_race_threads_never_over|allowance_race_never_over|race_lost_locks_never_over|table_.*|stream_state_(race|every|of)_.*|ledger_exact_to_the_byte|log_.*|lock_that_is_held.*

native-asan: $(BUILD)/native/asan/run_tests  ## the same under address and undefined-behaviour sanitizers
	VC_TEST_TIMEOUT=6 $< --jobs 2 $$($< --list | grep -vxE '$(FORK_HEAVY)')

native-tsan: $(BUILD)/native/tsan/run_tests  ## those with threads under the thread sanitizer
	VC_TEST_TIMEOUT=10 $< --jobs 2 $$($< --list | grep -xE '$(THREADED)')

native-check: $(BUILD)/libvcuda.so  ## exports, glibc versions, constructors, include directions
	$(PY) tests/native/check_library.py --one-unit $<

# --- programs that tests run under the library ------------------------------------------------------------------
CLIENT_CFLAGS := -std=c17 -O2 -g -Wall -Wextra -Werror
CLIENTS := $(addprefix $(BUILD)/native/clients/,client client-linked lookup proc_address chain.so next_user.so tail.so \
  load vmm-race ways plugin.so plugin-linked.so plugin-constructor.so second/libcuda.so.1 sandbox footprint witness.so runtime \
  interposer.so atfork.so dynlink.so dynlink-table.so dynlink-sealed.so dynlink-open.so dynlink-main dynlink-user streams work work-linked neighbours ways-asan ways-asan-static ways-tsan)

.PHONY: native-clients
native-clients: $(CLIENTS)  ## build the programs that tests run under the library

$(BUILD)/native/clients/client: tests/native/clients/client.c tests/native/clients/reach.c tests/native/clients/reach.h | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(NATIVE_HEADERS) -pthread -o $@.new $(filter %.c,$^) -ldl && mv $@.new $@
$(BUILD)/native/clients/vmm-race: tests/native/clients/vmm_race.c $(BUILD)/fakedriver/libcuda.so | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(NATIVE_HEADERS) -pthread -o $@.new $< -L$(BUILD)/fakedriver -lcuda && mv $@.new $@
$(BUILD)/native/clients/client-linked: tests/native/clients/client.c tests/native/clients/reach.c tests/native/clients/reach.h \
    $(BUILD)/fakedriver/libcuda.so | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) -DLINKED $(NATIVE_HEADERS) -pthread -o $@.new $(filter %.c,$^) -L$(BUILD)/fakedriver -lcuda -ldl && mv $@.new $@
$(BUILD)/native/clients/work: tests/native/clients/work.c tests/native/clients/work.def | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(NATIVE_HEADERS) -o $@.new $< -ldl && mv $@.new $@
$(BUILD)/native/clients/work-linked: tests/native/clients/work.c tests/native/clients/work.def $(BUILD)/fakedriver/libcuda.so | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) -DLINKED $(NATIVE_HEADERS) -o $@.new $< -L$(BUILD)/fakedriver -lcuda -ldl && mv $@.new $@
$(BUILD)/native/clients/streams: tests/native/clients/streams.c | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(NATIVE_HEADERS) -pthread -o $@.new $< -ldl && mv $@.new $@
$(BUILD)/native/clients/ways-asan $(BUILD)/native/clients/ways-asan-static $(BUILD)/native/clients/ways-tsan: tests/native/clients/ways.c tests/native/clients/ways.h | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(NATIVE_HEADERS) -fsanitize=$(if $(findstring asan,$@),address,thread) $(if $(findstring static,$@),-static-libasan) -pthread -o $@.new $< -ldl && mv $@.new $@
# With the driver's place in the file, as a set-user-ID program has no LD_LIBRARY_PATH.
$(BUILD)/native/clients/ways: tests/native/clients/ways.c tests/native/clients/ways.h | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(NATIVE_HEADERS) -pthread -Wl,--disable-new-dtags,-rpath,$(abspath $(BUILD))/fakedriver -o $@.new $< -ldl && mv $@.new $@
$(BUILD)/native/clients/plugin.so $(BUILD)/native/clients/plugin-linked.so $(BUILD)/native/clients/plugin-constructor.so: \
    $(BUILD)/native/clients/%.so: tests/native/clients/plugin.c tests/native/clients/ways.h $(BUILD)/fakedriver/libcuda.so | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(if $(findstring linked,$*),-DLINKED)$(if $(findstring constructor,$*),-DCONSTRUCTOR) \
	  $(NATIVE_HEADERS) -fPIC -shared -o $@.new $< $(if $(findstring linked,$*),-L$(BUILD)/fakedriver -lcuda) -ldl && mv $@.new $@
$(BUILD)/native/clients/docker_allowed.h: tests/native/clients/docker_allowed.txt
	@mkdir -p $(@D)
	@tr -s ' ' '\n' < $< | sed 's/.*/#ifdef SYS_&\nSYS_&,\n#endif/' > $@.new && mv $@.new $@
$(BUILD)/native/clients/sandbox: tests/native/clients/sandbox.c $(BUILD)/native/clients/docker_allowed.h
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) -I$(@D) -o $@.new $< && mv $@.new $@
$(BUILD)/native/clients/footprint: tests/native/clients/footprint.c
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) -pthread -o $@.new $< -ldl && mv $@.new $@
# As a program may be linked: .so as the system does it, with everything sealed after start, with nothing.
DYNLINK_table := -DBY_TABLE
DYNLINK_sealed := -Wl,-z,relro,-z,now
DYNLINK_open := -Wl,-z,norelro
$(BUILD)/native/clients/dynlink-%.so: tests/native/clients/dynlink.c
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(DYNLINK_$*) -fPIC -shared -o $@.new $< -ldl && mv $@.new $@
$(BUILD)/native/clients/dynlink-main: tests/native/clients/dynlink.c
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) -DMAIN -rdynamic -o $@.new $< -ldl && mv $@.new $@
$(BUILD)/native/clients/dynlink-user: tests/native/clients/dynlink_user.c $(BUILD)/native/clients/dynlink.so
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) -o $@.new $^ -Wl,-rpath,$(abspath $(BUILD))/native/clients && mv $@.new $@
# A second copy of the driver, as the cuda-compat packages bring one.
$(BUILD)/native/clients/second/libcuda.so.1: $(BUILD)/fakedriver/libcuda.so
	@mkdir -p $(@D)
	@cp $< $@.new && mv $@.new $@
$(BUILD)/native/clients/%.so: tests/native/clients/%.c | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(NATIVE_HEADERS) -fPIC -shared -o $@.new $< -ldl && mv $@.new $@
$(BUILD)/native/clients/%: tests/native/clients/%.c | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $(call place,$@,$(CLIENTS))  $@"
	$(Q)$(CC) $(CLIENT_CFLAGS) $(NATIVE_HEADERS) -o $@.new $< -ldl && mv $@.new $@

include $(dir $(lastword $(filter %native.mk,$(MAKEFILE_LIST))))cross.mk
