"""`make test-gpu`: runs every case on the machine's own driver and writes docs/gpu/<gpu>-<driver>-<date>.md.

Exit 0: everything that could run passed. 1: something failed. 3: there is no card to test on.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import platform
import re
import sys
import tempfile
from pathlib import Path

from tests.gpu.cases import CASES, CaseFailedError, CaseSkippedError, World

ROOT = Path(__file__).resolve().parents[2]


def card() -> tuple[str, str, int]:
    """Name, driver version and free bytes of the first card, from NVML; exits with 3 when there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        print(
            f"test-gpu: no NVIDIA driver here ({error}); run this on a machine with a card", file=sys.stderr
        )
        raise SystemExit(3) from None
    device = ctypes.c_void_p()
    name, driver = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    memory = (ctypes.c_ulonglong * 3)()
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) != 0:
        print("test-gpu: NVML finds no card; check nvidia-smi and NVIDIA_VISIBLE_DEVICES", file=sys.stderr)
        raise SystemExit(3)
    nvml.nvmlDeviceGetName(device, name, 96)
    nvml.nvmlSystemGetDriverVersion(driver, 96)
    nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    return name.value.decode(), driver.value.decode(), int(memory[1])


def main() -> int:
    """Run the cases and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--library", type=Path, default=ROOT / "build/libvcuda.so")
    parser.add_argument("--report-dir", type=Path, default=ROOT / "docs/gpu")
    parser.add_argument("--limit-gib", type=int, default=4, help="quota of each case (default 4)")
    options = parser.parse_args()
    name, driver, free = card()
    limit = options.limit_gib << 30
    if free < limit:
        print(
            f"test-gpu: {name} has {free} bytes free, the cases need {limit}; stop what uses it",
            file=sys.stderr,
        )
        return 3
    rows: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="gigaslice-gpu-") as scratch:
        world = World(options.library, Path(scratch), limit)
        for case in CASES:
            try:
                verdict, evidence = "pass", case(world)
            except CaseSkippedError as reason:
                verdict, evidence = "skip", str(reason)
            except CaseFailedError as reason:
                verdict, evidence = "FAIL", str(reason)
            rows.append((case.__name__, verdict, evidence))
            print(f"{verdict:4}  {case.__name__:20} {evidence}", flush=True)
    write_report(options.report_dir, name, driver, limit, rows)
    failed = sum(verdict == "FAIL" for _, verdict, _ in rows)
    print(f"{sum(verdict == 'pass' for _, verdict, _ in rows)} passed, {failed} failed")
    return 1 if failed else 0


def write_report(
    directory: Path, name: str, driver: str, limit: int, rows: list[tuple[str, str, str]]
) -> None:
    """One Markdown file per card, driver and day."""
    today = datetime.date.today().isoformat()
    directory.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    lines = [
        f"# {name}, driver {driver}, {today}",
        "",
        f"Kernel {platform.release()}, Python {platform.python_version()}, quota {limit >> 30} GiB per case.",
        "",
        "| case | verdict | evidence |",
        "| --- | --- | --- |",
        *(
            f"| {case} | {verdict} | {' '.join(evidence.split()).replace('|', '/')} |"
            for case, verdict, evidence in rows
        ),
        "",
    ]
    path = directory / f"{slug}-{driver}-{today}.md"
    path.write_text("\n".join(lines))
    print(f"report: {path}")


if __name__ == "__main__":
    sys.exit(main())
