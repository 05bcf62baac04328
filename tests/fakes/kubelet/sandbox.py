# SPDX-License-Identifier: Apache-2.0
# System calls and descriptors, which pathlib has no words for:
# ruff: noqa: PTH102, PTH110, PTH116, PTH118, PTH120, PTH123, PTH208, PTH211
"""Starts one program in mount and PID namespaces of its own, or in those of a running one. Linux only.

Run as `python -I -S sandbox.py JOB`, JOB being a JSON file that runtime.py writes; it imports nothing of the
project. Nothing on the host is changed: a mount target that does not exist gets its parent directory replaced,
inside the namespace alone, by a tmpfs in which everything the directory holds is bound again.

On descriptor `report` it says "pid N" (the program's PID on the host) or "error TEXT". It stays as the
program's parent, ends with its exit code (128 + signal), and kills it when descriptor `lifeline` is closed.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import stat
import sys

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime: statvfs has the same bits
PR_SET_PDEATHSIG = 1
SETUP_FAILED = 125

libc = ctypes.CDLL(None, use_errno=True)


def call(what, result):
    """RESULT of a libc call; OSError naming WHAT when it is not 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, kind, flags, data=None):
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    source_, target_, kind_, data_ = encoded
    call(f"mount {target}", libc.mount(source_, target_, kind_, ctypes.c_ulong(flags), data_))


def unshare(user):
    """New mount and PID namespaces; with USER a user namespace around them, mapping this user to itself."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS | CLONE_NEWPID | (CLONE_NEWUSER if user else 0)
    call("unshare", libc.unshare(flags))
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as stream:
                stream.write(text)
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def join(pid):
    """The namespaces of the process PID."""
    descriptors = []
    for name in ("user", "mnt", "pid"):
        theirs, ours = os.stat(f"/proc/{pid}/ns/{name}"), os.stat(f"/proc/self/ns/{name}")
        if theirs.st_ino != ours.st_ino:
            descriptors.append(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC))
    for descriptor in descriptors:
        call("setns", libc.setns(descriptor, 0))


def bind(source, target, read_only):
    mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        kept = os.statvfs(target).f_flag & KEPT_FLAGS
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def mirror(directory):
    """Makes DIRECTORY writable for this namespace alone, with all it holds still there."""
    original = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    names = os.listdir(original)
    mount("tmpfs", directory, "tmpfs", 0, "mode=0755")
    for name in names:
        kind = os.stat(name, dir_fd=original, follow_symlinks=False).st_mode
        target = os.path.join(directory, name)
        if stat.S_ISLNK(kind):
            os.symlink(os.readlink(name, dir_fd=original), target)
            continue
        make(target, stat.S_ISDIR(kind))
        mount(f"/proc/self/fd/{original}/{name}", target, None, MS_BIND | MS_REC)
    os.close(original)


def make(target, directory):
    if directory:
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def prepare(target, directory, private):
    """TARGET exists afterwards, as a mount point. PRIVATE: directories that only this namespace has."""
    missing = []
    while not os.path.exists(target):
        missing.append(target)
        target = os.path.dirname(target)
    if not missing:
        return
    if target not in private:
        if target == "/":
            raise OSError(0, f"mount {missing[0]}: no private directory can be put at /")
        mirror(target)
        private.add(target)
    for path in reversed(missing):
        parent = path != missing[0]
        make(path, directory or parent)
        if parent:
            private.add(path)


def inside(job):
    """What the program's own process does before it becomes the program; never returns."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if job["mode"] == "create":
        mount("proc", "/proc", "proc", 2 | 4 | 8)
        private = set()
        sources = [os.open(m["source"], os.O_PATH) for m in job["mounts"]]
        for source, asked in sorted(
            zip(sources, job["mounts"], strict=True), key=lambda pair: pair[1]["target"].count("/")
        ):
            prepare(asked["target"], stat.S_ISDIR(os.fstat(source).st_mode), private)
            bind(f"/proc/self/fd/{source}", asked["target"], asked["read_only"])
        for source in sources:
            os.close(source)
    os.setsid()
    os.chdir(job["cwd"])
    os.execvpe(job["command"][0], job["command"], job["env"])


def wait(child, lifeline):
    """Exit code of CHILD, which does not outlive the LIFELINE's other end."""
    ends = [lifeline]
    with contextlib.suppress(OSError, AttributeError):  # an old or restricted kernel: poll every 20 ms
        ends.append(os.pidfd_open(child))
    poll = None if len(ends) == 2 else 0.02
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        ready, _, _ = select.select(ends, [], [], poll)
        if lifeline in ready:
            os.kill(child, signal.SIGKILL)
            ends.remove(lifeline)


def main():
    with open(sys.argv[1]) as stream:
        job = json.load(stream)
    report = job["report"]
    failed, say = os.pipe()  # closed by a successful exec
    try:
        if job["mode"] == "create":
            unshare(job["user"])
        else:
            join(job["join"])
        child = os.fork()
    except OSError as error:
        os.write(report, f"error {error.strerror}\n".encode())
        return SETUP_FAILED
    if child == 0:
        os.close(failed)
        try:
            inside(job)
        except OSError as error:
            os.write(say, f"{error.strerror or error}: {error.filename or ''}".rstrip(": ").encode())
        os._exit(SETUP_FAILED)
    os.close(say)
    with os.fdopen(failed) as stream:
        text = stream.read()
    os.write(report, f"error {text}\n".encode() if text else f"pid {child}\n".encode())
    os.close(report)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    code = wait(child, job["lifeline"])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
