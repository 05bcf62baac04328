# SPDX-License-Identifier: Apache-2.0
# Fuzz targets. `make fuzz` lets libFuzzer loose on them; `make fuzz-replay`, part of `make check`, needs gcc alone.
FUZZ_TARGETS := text limits ledger nvml
FUZZ_MUTATIONS ?= 3000
SECONDS ?= 60
FUZZ_SOURCES := $(wildcard native/base/*.c native/shm/*.c) native/config.c native/directory.c native/head.c native/mounts.c
FUZZ_INCLUDES = $(NATIVE_I_nvml) -Inative -Itests/fuzz

.PHONY: fuzz fuzz-replay
fuzz-replay: $(addprefix $(BUILD)/fuzz/replay-,$(FUZZ_TARGETS))  ## the fuzz corpus and its mutations, under sanitizers
	@for target in $(FUZZ_TARGETS); do \
	  $(BUILD)/fuzz/replay-$$target tests/fuzz/corpus/$$target $(FUZZ_MUTATIONS) || exit 1; done

$(BUILD)/fuzz/replay-%: tests/fuzz/fuzz_%.c tests/fuzz/replay.c $(wildcard tests/fuzz/*.h) \
    $(patsubst native/%,$(BUILD)/native/asan/%.o,$(FUZZ_SOURCES)) native/nvml/private_table.c | $(VENV)
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(CC) $(filter-out -MMD -MP,$(NATIVE_CFLAGS)) $(NATIVE_ASAN) $(FUZZ_INCLUDES) -o $@.new $(filter-out native/%,$(filter %.c %.o,$^)) && mv $@.new $@

fuzz: $(addprefix $(BUILD)/fuzz/libfuzzer-,$(FUZZ_TARGETS))  ## libFuzzer for SECONDS each (clang); findings stay in build/fuzz
	@for target in $(FUZZ_TARGETS); do mkdir -p $(BUILD)/fuzz/corpus-$$target; \
	  echo "--- $$target, $(SECONDS) s"; \
	  $(BUILD)/fuzz/libfuzzer-$$target -max_total_time=$(SECONDS) -max_len=8192 -print_final_stats=1 -verbosity=0 \
	    -artifact_prefix=$(BUILD)/fuzz/$$target- $(BUILD)/fuzz/corpus-$$target tests/fuzz/corpus/$$target \
	    2>&1 | grep -vE '^(INFO|stat::(new|slowest|average))' ; test $${PIPESTATUS[0]} -eq 0 || exit 1; done

$(BUILD)/fuzz/libfuzzer-%: tests/fuzz/fuzz_%.c $(wildcard tests/fuzz/*.h) $(FUZZ_SOURCES) native/nvml/private_table.c | $(VENV)
	@command -v clang >/dev/null || { echo "error: clang is not installed; make fuzz-replay does without" >&2; exit 3; }
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)clang -std=c17 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $(FUZZ_INCLUDES) -o $@.new \
	  $(filter tests/%.c,$^) $(FUZZ_SOURCES) && mv $@.new $@
