# SPDX-License-Identifier: Apache-2.0
"""Whom NVML charges for memory that two processes share: exported handles, IPC handles, pools. No library.

The parent has no context while it starts the other one, since a fork would spoil both. `role`: the other process.
"""

import ctypes
import os
import socket
import subprocess
import sys

from driver import (
    FD,
    MIB,
    Nvml,
    allocate,
    allow,
    call,
    create,
    cuda,
    done,
    map_at,
    new_pool,
    open_context,
    pointer,
    ref,
    release,
    reserve,
    say,
    size_t,
    synchronize,
    u64,
    uuid,
)

SIZE = 64 * MIB


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, passed by value."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def other(channel):
    """Does what it is told: import FD, open an IPC handle, close, end."""
    context = open_context()
    held, mapped = u64(), 0
    channel.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 256, 1)
        word, _, rest = message.partition(b" ")
        answer = 0
        if word == b"import":
            answer = cuda.cuMemImportFromShareableHandle(ref(held), pointer(descriptors[0]), FD)
            os.close(descriptors[0])
            if answer == 0:
                mapped = reserve(SIZE)
                map_at(mapped, SIZE, held.value)
                allow(mapped, SIZE)
        elif word == b"drop":
            cuda.cuMemUnmap(u64(mapped), size_t(SIZE))
            answer = cuda.cuMemRelease(held)
        elif word == b"ipc":
            address, handle = u64(), IpcHandle.from_buffer_copy(rest)
            answer = cuda.cuIpcOpenMemHandle_v2(ref(address), handle, 1)
            held = address
        elif word == b"close":
            answer = cuda.cuIpcCloseMemHandle(held)
        else:
            assert context
            return
        channel.send(str(answer).encode())


def check(name, holds, saw):
    """One judgement."""
    say(**{f"check_{name}": [bool(holds), str(saw)]})


class Pair:
    """This process and the other one, and what NVML gives each."""

    def __init__(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "role", str(theirs.fileno())], pass_fds=(theirs.fileno(),)
            )
        ours.settimeout(30)
        self.channel = ours
        assert ours.recv(16) == b"ready"
        open_context()
        self.nvml = Nvml(uuid())
        self.base = self.reading()

    def reading(self):
        """(exporter, importer, all)."""
        seen = self.nvml.processes()
        return [seen.get(os.getpid(), 0), seen.get(self.process.pid, 0), self.nvml.used()]

    def grown(self, name):
        """The same since the start."""
        now = [a - b for a, b in zip(self.reading(), self.base, strict=True)]
        say(**{name: now})
        return now

    def tell(self, message, descriptor=None):
        """The other one's answer."""
        if descriptor is None:
            self.channel.send(message)
        else:
            socket.send_fds(self.channel, [message], [descriptor])
        return int(self.channel.recv(16))

    def end(self):
        """The other process is gone."""
        self.channel.send(b"end")
        self.process.wait(30)


def near(value, wanted):
    """Within what the driver takes beside it: page tables, bookkeeping."""
    return abs(value - wanted) <= 16 * MIB


def main():
    """Handles, IPC, then what is left when the exporter has let go."""
    pair, descriptor = Pair(), ctypes.c_int(-1)
    result, handle = create(SIZE, FD)
    say(create=result)
    own = pair.grown("handle: made")
    call("cuMemExportToShareableHandle", ref(descriptor), u64(handle), FD, u64(0))
    pair.grown("handle: exported")
    say(import_code=pair.tell(b"import", descriptor.value))
    os.close(descriptor.value)
    shared = pair.grown("handle: imported and mapped")
    call("cuMemRelease", u64(handle))
    left = pair.grown("handle: the exporter has let go")
    say(drop_code=pair.tell(b"drop"))
    gone = pair.grown("handle: dropped")
    check(
        "exporter_pays_handles",
        near(own[0], SIZE) and near(shared[0], SIZE) and near(shared[1], 0),
        [own, shared],
    )
    check("memory_stays_with_an_importer", near(left[2], SIZE), left)
    check("the_importer_pays_on", near(left[0], 0) and near(left[1], SIZE), left)
    check("all_gone_at_the_end", near(gone[2], 0), gone)
    _, address = allocate(SIZE)
    ipc = IpcHandle()
    call("cuIpcGetMemHandle", ref(ipc), u64(address))
    say(ipc_code=pair.tell(b"ipc " + bytes(ipc)))
    opened = pair.grown("ipc: opened")
    check("exporter_pays_ipc", near(opened[0], SIZE) and near(opened[1], 0) and near(opened[2], SIZE), opened)
    say(ipc_close=pair.tell(b"close"))
    release(address)
    check("ipc_ends", near(pair.grown("ipc: closed and freed")[2], 0), "see numbers")
    result, pool = new_pool(FD)
    if result == 0:
        block = u64()
        call("cuMemAllocFromPoolAsync", ref(block), size_t(SIZE), pool, None)
        synchronize()
        pair.grown("pool that can be shared: allocated")
    pair.end()
    pair.grown("the other process has ended")
    done()


if __name__ == "__main__":
    if sys.argv[1:2] == ["role"]:
        other(socket.socket(fileno=int(sys.argv[2])))
    else:
        main()
