# SPDX-License-Identifier: Apache-2.0
"""A CUDA program that a test writes as it goes: a Python process under the library that evaluates what it is sent.

`program.do("cuInit(0)")` answers the result code; names of the driver are functions of the program, `ref(x)` is a
pointer to x, and values are kept by name: `program.do("keep(m=Handle())")`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.native.running import SUCCESS

_PROGRAM = r"""
import ctypes, json, os, sys, threading, time
from ctypes import byref as ref, c_char_p, c_int, c_size_t, c_ulonglong, c_uint, c_void_p

cuda = ctypes.CDLL("libcuda.so.1")

class Handle(c_void_p):
    pass

class Scope(dict):
    def __missing__(self, name):
        if name.startswith("cu"):
            return getattr(cuda, name)
        raise KeyError(name)

def keep(**values):
    scope.update(values)

def free():
    avail, total = c_size_t(), c_size_t()
    code = cuda.cuMemGetInfo_v2(ref(avail), ref(total))
    assert code == 0, code
    return avail.value

def later_free():
    time.sleep(0.25)  # longer than a measurement is believed without another reading
    return free()

def behind_the_hooks(name, offset):
    maps = [line.split() for line in open("/proc/self/maps")]
    base = min(int(words[0].split("-")[0], 16) for words in maps if words[-1].endswith("fakedriver/libcuda.so.1"))
    return ctypes.CFUNCTYPE(c_int, c_void_p)(base + offset)

def at_once(*calls):
    codes = [None] * len(calls)
    start = threading.Barrier(len(calls))
    def run(i):
        start.wait()
        codes[i] = calls[i]()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return codes

scope = Scope(globals())
scope.update(vars(__builtins__))
for line in sys.stdin:
    try:
        answer = eval(json.loads(line), scope)
    except Exception as error:
        answer = {"raised": repr(error)}
    print(json.dumps(answer), flush=True)
"""


class Program:
    """A running program."""

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def do(self, expression: str) -> Any:
        """The value of EXPRESSION in the program."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(expression) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.communicate()[1]!r}"
        answer = json.loads(line)
        assert not (isinstance(answer, dict) and "raised" in answer), f"{expression}: {answer}"
        return answer

    def ready(self, device: int = 0) -> Program:
        """Initialises and makes the device's primary context current; it is kept as `primary`."""
        self.do("keep(primary=Handle())")
        for call in (
            "cuInit(0)",
            f"cuDevicePrimaryCtxRetain(ref(primary), {device})",
            "cuCtxSetCurrent(primary)",
        ):
            assert self.do(call) == SUCCESS, call
        return self

    def free(self) -> int:
        """What cuMemGetInfo says is left."""
        return int(self.do("free()"))

    def later_free(self) -> int:
        """The same when the last measurement is too old to be believed."""
        return int(self.do("later_free()"))

    def close(self) -> str:
        """Lets the program end by itself; returns what it wrote to stderr."""
        return self.process.communicate(timeout=60)[1]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
