# SPDX-License-Identifier: Apache-2.0
"""Generates Python from the protocols in this directory (`PACKAGES` says where to), or checks that it is up to date.

The generated files are committed, so that installing needs no protocol compiler. Two things are taken out
of what the compiler writes: the assertions that pin each file to the compiler's own release of protobuf
and grpcio. They would make the committed files unusable with the older releases that pyproject.toml
allows, although nothing in the rest of these files is newer than those: they were run with the lower and
the upper bounds of both.

`proto/checksums` names every source and every output with its SHA-256; the check
compares these and needs no compiler. The meaning of the protocols is no concern of it: tests/unit/proto.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
RECORD = SOURCES / "checksums"
PACKAGES = {
    "deviceplugin_v1beta1": "agent/kubelet/pb",
    "podresources_v1": "agent/kubelet/pb",
    "dra_v1": "agent/kubelet/pb",
    "dra_v1beta1": "agent/kubelet/pb",
    "csi_v1": "gigaslice/roles/dataset_node/csi/pb",
    "pluginregistration_v1": "gigaslice/runtime/pb",
}
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")

PROTOBUF_PIN = re.compile(r"^_runtime_version\.ValidateProtobufRuntimeVersion\(.*?^\)\n", re.M | re.S)
PROTOBUF_IMPORT = "from google.protobuf import runtime_version as _runtime_version\n"
PROTOBUF_RELEASE = re.compile(r"^# Protobuf Python Version: .*\n", re.M)
GRPC_PIN = re.compile(r"^GRPC_GENERATED_VERSION = .*?^    \)\n", re.M | re.S)
GRPC_IMPORT = "import warnings\n"


class StaleError(Exception):
    """The generated files and their sources do not belong together."""


def without_pins(name: str, text: str) -> str:
    """TEXT of the generated file NAME without its release assertions; StaleError when it holds none."""
    cuts = {"_pb2.py": (PROTOBUF_PIN, PROTOBUF_RELEASE), "_pb2_grpc.py": (GRPC_PIN,)}
    imports = {"_pb2.py": PROTOBUF_IMPORT, "_pb2_grpc.py": GRPC_IMPORT}
    for suffix, patterns in cuts.items():
        if not name.endswith(suffix):
            continue
        for pattern in patterns:
            text, count = pattern.subn("", text)
            if count != 1:
                raise StaleError(
                    f"{name}: this grpcio-tools writes another release assertion; see {__file__}"
                )
        text = text.replace(imports[suffix], "", 1)
    return text


def generate(directory: Path) -> None:
    """Writes the generated packages below DIRECTORY."""
    command = [
        sys.executable, "-m", "grpc_tools.protoc",
        *(f"-I{package}={SOURCES}" for package in dict.fromkeys(PACKAGES.values())),
        *(f"--{plugin}_out={directory}" for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")),
        *(f"{package}/{name}.proto" for name, package in PACKAGES.items()),
    ]  # fmt: skip
    # The compiler finds its mypy plugins on PATH, which need not hold the running interpreter's directory.
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    subprocess.run(command, check=True, env={"PATH": path})
    for output in outputs(directory):
        output.write_text(without_pins(output.name, output.read_text()))


def outputs(root: Path) -> list[Path]:
    """The generated files below ROOT."""
    return [root / package / f"{name}{suffix}" for name, package in PACKAGES.items() for suffix in SUFFIXES]


def checksums() -> str:
    """One line "SHA-256  path" for each source and output, as they are now."""
    files = [SOURCES / f"{name}.proto" for name in PACKAGES] + outputs(ROOT)
    for file in files:
        if not file.exists():
            raise StaleError(f"{file.relative_to(ROOT)} is missing: run `make proto`")
    return "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.relative_to(ROOT)}\n" for f in files)


def check() -> None:
    """Raises StaleError naming every file that is not what was generated last."""
    record = RECORD
    recorded = set(record.read_text().splitlines()) if record.exists() else set()
    changed = sorted(line.split()[1] for line in set(checksums().splitlines()) ^ recorded)
    if changed:
        names = ", ".join(dict.fromkeys(changed))
        raise StaleError(f"changed since the last generation: {names}; run `make proto`")


def main() -> int:
    """Entry point of `make proto` and `make proto-check`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    try:
        if parser.parse_args().check:
            check()
        else:
            with tempfile.TemporaryDirectory() as scratch:
                generate(Path(scratch))
                for file in outputs(Path(scratch)):
                    (ROOT / file.relative_to(scratch)).write_text(file.read_text())
            RECORD.write_text(checksums())
    except (StaleError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"proto: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
