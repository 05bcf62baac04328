# SPDX-License-Identifier: Apache-2.0
"""Where the driver's functions are: by dlsym, and by both versions of cuGetProcAddress for every name,
version and flag.

Argument: a file with the hooked symbols, one a line. `stray`: pointers that are no exported function's;
`outside`: hooked ones that do not lead to the library, which are all of them without it.
"""

import ctypes
import re
import sys
from pathlib import Path

from driver import cuda, done, has, open_context, pointer, ref, say, u64

VERSIONS = (
    2000,
    3020,
    4000,
    6050,
    7000,
    7050,
    8000,
    9000,
    10000,
    10020,
    11000,
    11010,
    11020,
    11030,
    11040,
    11060,
    11070,
    11080,
    12000,
    12010,
    12020,
    12030,
    12040,
    12050,
    12060,
    12080,
    12090,
    13000,
    13010,
    13020,
    13050,
)
FLAGS = (0, 1, 2)  # default, legacy, per-thread default stream
LATEST = 15  # of VERSIONS that stand for what programs ask today


def base(symbol):
    """The name that cuGetProcAddress takes."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol)


class Libraries:
    """The files of this process by address, read once more when an address is new."""

    def __init__(self):
        self.ranges = []

    def of(self, address):
        """Name of the file that ADDRESS lies in."""
        for again in (False, True):
            for begin, end, name in self.ranges:
                if begin <= address < end:
                    return name
            if not again:
                self.read()
        return "?"

    def read(self):
        """All mappings that have a file."""
        self.ranges = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            words = line.split(None, 5)
            if len(words) == 6 and words[5].startswith("/"):
                begin, end = (int(part, 16) for part in words[0].split("-"))
                self.ranges.append((begin, end, Path(words[5]).name))


class DlInfo(ctypes.Structure):
    """Dl_info."""

    _fields_ = (("file", ctypes.c_char_p), ("base", pointer), ("name", ctypes.c_char_p), ("address", pointer))


def nearest(address):
    """The exported symbol before ADDRESS, and how far that is."""
    info, libc = DlInfo(), ctypes.CDLL(None)
    if libc.dladdr(pointer(address), ref(info)) == 0 or not info.name:
        return "?"
    return f"{info.name.decode()}+{address - info.address}"


def address_of(symbol):
    """What dlsym gives, as an address; 0: none."""
    return ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value if has(symbol) else 0


def ask(name, version, flags):
    """(code, address, status) of cuGetProcAddress_v2, or of the first version."""
    out, status = pointer(), ctypes.c_int(-1)
    if has("cuGetProcAddress_v2"):
        code = cuda.cuGetProcAddress_v2(name.encode(), ref(out), version, u64(flags), ref(status))
    else:
        code = cuda.cuGetProcAddress(name.encode(), ref(out), version, u64(flags))
    return code, out.value or 0, status.value


def old(name, version, flags):
    """The same of the first version."""
    out = pointer()
    return cuda.cuGetProcAddress(name.encode(), ref(out), version, u64(flags)), out.value or 0


def exported(symbols):
    """Address -> names. Versions that no header lists any more count too: every _vN and twin of a base name."""
    found = {}
    for symbol in symbols:
        if address_of(symbol):
            found.setdefault(address_of(symbol), []).append(symbol)
    versions = ("", *(f"_v{number}" for number in range(2, 6)))
    for name in sorted({base(symbol) for symbol in symbols}):
        for symbol in (name + version + twin for version in versions for twin in ("", "_ptsz", "_ptds")):
            if symbol not in symbols and address_of(symbol):
                found.setdefault(address_of(symbol), []).append(symbol)
    return found


class Answers:
    """What cuGetProcAddress has answered, counted."""

    def __init__(self, symbols, by_address):
        self.symbols, self.by_address, self.libraries = set(symbols), by_address, Libraries()
        self.asked = self.strangers = self.differing = 0
        self.stray, self.outside, self.where = [], [], {}

    def ask(self, name, version, flags):
        """One question."""
        code, address, _ = ask(name, version, flags)
        if code != 0 or address == 0:
            return
        place = self.libraries.of(address)
        self.asked += 1
        self.where[place] = self.where.get(place, 0) + 1
        names = self.by_address.get(address, [])
        if not names:
            self.strangers += 1
            self.stray.append([name, version, flags, place, nearest(address)])
        elif "vcuda" not in place and self.symbols.intersection(names):
            self.outside.append([name, version, flags, place, names])
        both = has("cuGetProcAddress") and has("cuGetProcAddress_v2")
        self.differing += both and old(name, version, flags) != (0, address)


def main(symbols):
    """Everything."""
    open_context()
    by_address = exported(symbols)
    answers = Answers(symbols, by_address)
    for name in sorted({base(symbol) for symbol in symbols}):
        for version in VERSIONS:
            for flags in FLAGS:
                answers.ask(name, version, flags)
    present = [symbol for symbol in symbols if address_of(symbol)]
    say(
        hooked=len(symbols),
        present=len(present),
        absent=[symbol for symbol in symbols if symbol not in present],
        asked=answers.asked,
        strangers=answers.strangers,
        stray=answers.stray[:40],
        stray_names=sorted({f"{row[0]} {row[4]}" for row in answers.stray})[:300],
        outside=answers.outside[:40],
        outside_count=len(answers.outside),
        differing=answers.differing,
        shared=[
            names for names in by_address.values() if len(names) > 1 and answers.symbols.intersection(names)
        ],
        places=sorted({answers.libraries.of(address_of(symbol)) for symbol in present}),
        by_place=answers.where,
        spread=max(by_address) - min(by_address),
    )
    done()


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text().split())
