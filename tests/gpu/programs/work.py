# SPDX-License-Identifier: Apache-2.0
"""A few kernels for profilers and sanitizers. Modes: run; beyond (one of them writes behind an allocation)."""

import ctypes
import sys

from driver import (
    Launch,
    allocate,
    call,
    code,
    done,
    loaded,
    memory,
    new_stream,
    open_context,
    pointer,
    ref,
    say,
    u64,
)

WRITE = b"""
.version 6.3
.target sm_52
.address_size 64
.visible .entry work_2us(.param .u64 where)
{
  .reg .u64 %r<2>;
  .reg .u32 %v;
  ld.param.u64 %r0, [where];
  mov.u32 %v, 7;
  st.global.u32 [%r0], %v;
  ret;
}
"""
open_context()
say(total=memory()[1])
work, stream = Launch(1000), new_stream()
for _ in range(5):
    work.into(stream)
say(wait=code("cuCtxSynchronize"))
if sys.argv[1] == "beyond":
    module, function, (_, address) = loaded(WRITE), pointer(), allocate(1024)
    call("cuModuleGetFunction", ref(function), module, b"work_2us")
    where = u64(address + 1024)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(where))
    say(
        launch=code("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, params, None),
        wait=code("cuCtxSynchronize"),
    )
done()
