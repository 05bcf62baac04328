# SPDX-License-Identifier: Apache-2.0
# The simulated driver: build/fakedriver/libcuda.so.1, libnvidia-ml.so.1 and fakectl. Included by the Makefile, and
# complete by itself: make -f tests/fakedriver/fakedriver.mk
# CUDA_INCLUDE, NVML_INCLUDE: where cuda.h and nvml.h are; BUILD: where results go.

FAKEDRIVER     := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
BUILD          ?= build
CUDA_INCLUDE   ?= $(firstword $(wildcard $(BUILD)/include $(BUILD)/venv/lib/python3*/site-packages/nvidia/cu*/include))
NVML_INCLUDE   ?= $(CUDA_INCLUDE)
FAKE_OUT       := $(BUILD)/fakedriver
FAKE_OBJECTS   := $(FAKE_OUT)/objects

FAKE_COMMON    := fake_machine fake_topology fake_state fake_limits fake_limits_files fake_env
FAKE_SHARED    := $(FAKE_COMMON) fake_call fake_visible
FAKE_CUDA      := $(FAKE_SHARED) fake_handle fake_device fake_context fake_arena fake_range fake_memory fake_pool \
                  fake_pool_objects fake_pool_share \
                  fake_stream fake_time fake_module fake_launch fake_capture fake_proc fake_array fake_format fake_copy fake_copy_batch fake_fill \
                  fake_host fake_managed fake_vmm fake_share fake_multicast fake_endpoint fake_sparse fake_ipc \
                  fake_settings fake_attributes fake_memop \
                  fake_graph fake_graph_nodes fake_graph_memory fake_graph_exec fake_graph_update \
                  fake_graph_reuse fake_graph_conditional fake_link fake_texture fake_green \
                  fake_unsupported
FAKE_NVML      := $(FAKE_SHARED) fake_nvml_system fake_nvml_device fake_nvml_memory fake_nvml_limits fake_nvml_private fake_nvml_accounting \
                  fake_nvml_topology fake_nvml_sensors fake_nvml_event fake_nvml_confidential fake_nvml_unsupported
FAKE_CTL       := $(FAKE_COMMON) fake_call fakectl

FAKE_CFLAGS    := -std=c17 -D_GNU_SOURCE -O2 -g -fPIC -Wall -Wextra -Werror -fvisibility=hidden -fno-ipa-icf -fno-tree-slp-vectorize \
                  -ftls-model=initial-exec -pthread $(CFLAGS)
FAKE_LDFLAGS   := -shared -pthread -Wl,-Bsymbolic,-z,defs,-z,now,-z,nodelete $(LDFLAGS)

FAKE_ALL       := $(FAKE_CUDA:%=$(FAKE_OBJECTS)/cuda/%.o) $(sort $(FAKE_NVML:%=$(FAKE_OBJECTS)/nvml/%.o) $(FAKE_CTL:%=$(FAKE_OBJECTS)/nvml/%.o))
# The place of a file in the build, "12/83": the list is cut off at the file, and what is left of it counted.
fake_blank     := $(subst x, ,x)
fake_place      = $(words x $(subst |, ,$(firstword $(subst |$(1)|,| ,|$(subst $(fake_blank),|,$(FAKE_ALL))|))))/$(words $(FAKE_ALL))

.PHONY: fakedriver
fakedriver: $(FAKE_OUT)/libcuda.so $(FAKE_OUT)/libnvidia-ml.so $(FAKE_OUT)/fakectl  ## build the simulated driver

$(FAKE_OUT)/libcuda.so.1: $(FAKE_CUDA:%=$(FAKE_OBJECTS)/cuda/%.o)
	@echo "  LD  $@"
	@$(CC) $(FAKE_LDFLAGS) -Wl,-soname,libcuda.so.1 -o $@.new $^ && mv $@.new $@

$(FAKE_OUT)/libnvidia-ml.so.1: $(FAKE_NVML:%=$(FAKE_OBJECTS)/nvml/%.o)
	@echo "  LD  $@"
	@$(CC) $(FAKE_LDFLAGS) -Wl,-soname,libnvidia-ml.so.1 -o $@.new $^ && mv $@.new $@

$(FAKE_OUT)/fakectl: $(FAKE_CTL:%=$(FAKE_OBJECTS)/nvml/%.o)
	@echo "  LD  $@"
	@$(CC) -pthread $(LDFLAGS) -o $@.new $^ && mv $@.new $@

$(FAKE_OUT)/libcuda.so $(FAKE_OUT)/libnvidia-ml.so: %.so: %.so.1
	@ln -sfn $(notdir $<) $@

$(FAKE_OBJECTS)/cuda/%.o: $(FAKEDRIVER)/%.c | $(VENV)
	@mkdir -p $(@D)
	@echo "  CC  $(call fake_place,$@)  $@"
	@$(CC) $(FAKE_CFLAGS) -D__CUDA_API_VERSION_INTERNAL -D__CUDA_API_PUSH_VISIBILITY_DEFAULT -I$(CUDA_INCLUDE) -MMD -MP -MT $@ -MF $(@:.o=.d) -c -o $@.new $< && mv $@.new $@

$(FAKE_OBJECTS)/nvml/%.o: $(FAKEDRIVER)/%.c | $(VENV)
	@mkdir -p $(@D)
	@echo "  CC  $(call fake_place,$@)  $@"
	@$(CC) $(FAKE_CFLAGS) -DNVML_NO_UNVERSIONED_FUNC_DEFS -I$(NVML_INCLUDE) -MMD -MP -MT $@ -MF $(@:.o=.d) -c -o $@.new $< && mv $@.new $@

-include $(wildcard $(FAKE_OBJECTS)/*/*.d)
