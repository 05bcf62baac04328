# SPDX-License-Identifier: Apache-2.0
"""How many arenas of the C heap the threads of a program have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["count_arenas"]

_PROGRAM = """
import ctypes, sys, threading
exec(sys.argv[1])
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fopen.restype = ctypes.c_void_p
all_there = threading.Barrier(9)
def work():
    all_there.wait(30)
    libc.malloc(ctypes.c_size_t(4096))
    all_there.wait(30)
threads = [threading.Thread(target=work) for _ in range(8)]
for one in threads:
    one.start()
all_there.wait(30)
all_there.wait(30)
for one in threads:
    one.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
assert libc.malloc_info(0, file) == 0 and libc.fclose(file) == 0
print(open(sys.argv[2]).read().count("<heap nr="))
"""


def count_arenas(begin: str, folder: Path) -> int:
    """The arenas of a program with eight threads that allocate after the statements BEGIN. FOLDER: its home."""
    command = [sys.executable, "-c", _PROGRAM, begin, str(folder / "info.xml")]
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return int(done.stdout.splitlines()[-1])
