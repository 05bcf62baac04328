# SPDX-License-Identifier: Apache-2.0
"""What must hold for a library that is loaded into every process: checked on the built file and on the sources.

`python tests/native/check_library.py [--one-unit] build/libvcuda.so` prints one line per mistake and exits 1 when there
is one.
The same functions are run by tests/integration/test_native_exports.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "native"

# Include paths as native.mk gives them: what a file may see besides its own directory.
LAYERS = {
    "base": set(),
    "shm": {"base"},
    "table": {"base"},
    "hooks": {"base", "shm"},
    "cuda": {"base", "shm", "table", "hooks"},
    "nvml": {"base", "shm", "hooks"},
}
NEWEST_GLIBC = (2, 17)
FORBIDDEN_CALLS = {
    "exit",
    "_exit",
    "abort",
    "signal",
    "sigaction",
    "printf",
    "puts",
    "fork",
    "pthread_create",
}


def tool(*command: str) -> str:
    """Output of a binutils program."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def listed_symbols() -> set[str]:
    """The functions of the hook lists, and the two lookups that are written in assembly."""
    text = "".join(path.read_text() for path in sorted((NATIVE / "hooks").rglob("*.def")))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return set(re.findall(r"HOOK\(\s*\w+\s*,\s*(\w+)", text)) | {"dlsym", "dlvsym"}


def shared_symbols() -> set[str]:
    """Those of them that programs are handed only in a process whose work may have to wait."""
    texts = (path.read_text() for path in sorted((NATIVE / "hooks" / "cuda").glob("*.def")))
    return {symbol for text in texts for symbol in re.findall(r"HOOK\(SHARED, (\w+)", text)}


def exported_symbols(library: Path) -> set[str]:
    """Names that other objects can bind to, with their versions if they have any."""
    lines = tool("nm", "-D", "--defined-only", str(library)).splitlines()
    return {line.split()[-1] for line in lines}


def export_mistakes(library: Path) -> Iterator[str]:
    """Exports are exactly the lists: no more (pollution), no less (a hook that no program reaches)."""
    exported, listed = exported_symbols(library), listed_symbols()
    for name in sorted(exported - listed):
        yield f"{name} is exported but in no list"
    for name in sorted(listed - exported):
        yield f"{name} is listed but not exported"


def import_mistakes(library: Path) -> Iterator[str]:
    """One symbol version too new and no program starts, not even a shell."""
    table = tool("objdump", "-T", str(library))
    for found in sorted(set(re.findall(r"GLIBC_([0-9.]+)", table))):
        if tuple(map(int, found.split("."))) > NEWEST_GLIBC:
            yield f"needs GLIBC_{found}, newer than {NEWEST_GLIBC[0]}.{NEWEST_GLIBC[1]}"
    undefined = {
        line.split()[-1].split("@")[0]
        for line in tool("nm", "-D", "--undefined-only", str(library)).splitlines()
    }
    for name in sorted(undefined & (FORBIDDEN_CALLS | {"dlsym", "dlvsym", "dlopen"})):
        yield f"calls {name}"
    for needed in re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-d", str(library))):
        if needed not in {"libc.so.6", "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2"}:
            yield f"needs {needed}, which a process may not have loaded"


WORD = 8


def start_up_mistakes(library: Path) -> Iterator[str]:
    """One function runs when the library is loaded (init.c), none when it is unloaded; no memory may be writable and
    executable."""
    for section in re.findall(
        r"\s(\.(?:fini|preinit)_array|\.init|\.fini|\.ctors|\.dtors)\s", sections(library)
    ):
        yield f"has a section {section}: something runs at load time"
    constructors = section_bytes(library, ".init_array") // WORD
    if constructors != 1:
        yield f"{constructors} functions run at load time: init.c has the only one"
    if "TEXTREL" in tool("readelf", "-d", str(library)):
        yield "has text relocations"
    if re.search(r"GNU_STACK.*E\s", tool("readelf", "-lW", str(library))):
        yield "needs an executable stack"


PAGE = 4096
FIRST_LARGE = "allocations"  # the table with VC_LARGE_BEGINNING
RELATIVE = re.compile(r"R_\w+_RELATIVE")


def weight_mistakes(library: Path) -> Iterator[str]:
    """What every process pays for being started with the library, whether it uses CUDA or not, and what those pay that
    do: pages that are relocated or written for the first time, a microsecond and more each."""
    relocated = len(RELATIVE.findall(tool("readelf", "-rW", str(library))))
    if relocated > len(listed_symbols()) + 64:
        yield f"{relocated} addresses are relocated at load time: a table has addresses in it, see hooks/symbols.h"
    constant = sum(section_bytes(library, name) for name in (".data.rel.ro", ".dynamic", ".got"))
    if constant > PAGE:
        yield f"{constant} bytes are written by the loader: more than a page"


def page_mistakes(library: Path) -> Iterator[str]:
    """The same for variables, in a library that is linked as one unit; others have them in the order of their files."""
    pages = small_pages(library)
    if pages > 4:
        yield (
            f"small variables are on {pages} pages: a table among them lacks VC_LARGE of base/place.h, or hooks, which "
            "take 16 bytes each, have filled the last page: then a table that few programs write must go there"
        )


def section_bytes(library: Path, name: str) -> int:
    """Size of a section; 0 when there is none."""
    found = re.search(
        rf"\s{re.escape(name)}\s+\w+\s+[0-9a-f]+\s+[0-9a-f]+\s+([0-9a-f]+)\s", sections(library)
    )
    return int(found[1], 16) if found else 0


def small_pages(library: Path) -> int:
    """Pages from the first writable variable to the first large table, which begins on the last of them."""
    addresses = {}
    for line in tool("nm", "-S", str(library)).splitlines():
        fields = line.split()
        if len(fields) == 4 and fields[2] in "bBdD":
            addresses[fields[3]] = int(fields[0], 16) // PAGE
    first = min(page for page in addresses.values() if page > 0)  # 0: offsets of thread-local variables
    return addresses[FIRST_LARGE] - first + 1


def sections(library: Path) -> str:
    """Section headers as text."""
    return tool("readelf", "-SW", str(library))


def include_mistakes() -> Iterator[str]:
    """A directory includes only its own headers and those of the layers below it; only some may see NVIDIA's."""
    owner = {path.name: path.parent.name for path in NATIVE.glob("*/*.h")}
    for source in sorted([*NATIVE.glob("*/*.[chS]"), *NATIVE.glob("*/*.def")]):
        layer = source.parent.name
        for header in re.findall(r'#include\s+["<]([^">]+)[">]', source.read_text()):
            allowed = LAYERS[layer] | {layer}
            if header in owner and owner[header] not in allowed:
                yield f"{source.relative_to(NATIVE)} includes {header} of {owner[header]}/"
            if header in {"cuda.h", "nvml.h"} and source.name != "nvidia.h":
                yield f"{source.relative_to(NATIVE)} includes {header} instead of nvidia.h"


def environment_mistakes() -> Iterator[str]:
    """The environment is read in two places: settings and the log level."""
    for source in sorted(NATIVE.rglob("*.c")):
        if source.name not in {"config.c", "log.c"} and re.search(r"getenv\s*\(", source.read_text()):
            yield f"{source.relative_to(NATIVE)} reads the environment"


def mistakes(library: Path, one_unit: bool) -> list[str]:
    """Everything that is wrong."""
    checks = [export_mistakes, import_mistakes, start_up_mistakes, weight_mistakes]
    checks += [page_mistakes] if one_unit else []
    found = [mistake for check in checks for mistake in check(library)]
    return [*found, *include_mistakes(), *environment_mistakes()]


def main() -> int:
    """Check the library named on the command line."""
    *options, library = sys.argv[1:] or [""]
    if options not in ([], ["--one-unit"]) or not Path(library).is_file():
        print(f"usage: {sys.argv[0]} [--one-unit] LIBRARY (build it with make native)", file=sys.stderr)
        return 2
    found = mistakes(Path(library), bool(options))
    for mistake in found:
        print(f"{library}: {mistake}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
