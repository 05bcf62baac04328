# SPDX-License-Identifier: Apache-2.0
"""``vcuda ps``: what runs, what was declared, measured and refused."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gigaslice.core.units import format_bytes
from tests.fakedriver.env import write_machine
from tests.fakes.terminal import Terminal
from tests.integration.vcuda.programs import CLIENT, GIB, VCUDA, Run, line


def test_ps_tells_who_was_refused(run: Run, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("run", "--memory", "8GiB", "--", sys.executable, "-c", CLIENT, str(9 * GIB), str(8 * GIB))
    line(process)
    *_, last = run("ps").stdout.splitlines()
    assert last.endswith(": its quota of 8 GiB had no room for 2 allocations")


def test_ps_shows_what_runs(run: Run, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("run", "--memory", "8GiB", "--gpu", "1", "--", sys.executable, "-c", CLIENT, str(3 * GIB))
    assert line(process).split() == [str(8 * GIB), "0"]
    result = run("ps", "--json")
    assert result.returncode == 0, result.stderr
    (quota,) = json.loads(result.stdout)["quotas"]
    assert quota["kind"] == "command" and quota["name"].startswith(f"{sys.executable} -c")
    noted = json.loads((Path(quota["directory"]) / "command.json").read_text())
    (gpu,), (entry,) = quota["gpus"], quota["processes"]
    assert gpu["limit_bytes"] == 8 * GIB
    assert 3 * GIB <= gpu["used_bytes"] <= gpu["peak_bytes"] < 4 * GIB  # what it asked for, and its context
    assert entry["pid"] == entry["pid_inside"] == noted["pid"]
    assert entry["gpus"] == [{key: value for key, value in gpu.items() if key in entry["gpus"][0]}]
    assert gpu["declared_bytes"] == gpu["measured_bytes"] == gpu["used_bytes"] and gpu["drift_bytes"] == 0
    assert (entry["refused"], entry["name"][:6]) == (0, "python")
    table = run("ps").stdout
    assert format_bytes(gpu["used_bytes"]) in table and str(entry["pid"]) in table
    process.communicate()
    assert json.loads(run("ps", "--json").stdout)["quotas"] == []


# Loads code after the first allocation, in a way that no call declares, and then asks for its memory.
LAZY = CLIENT.replace(
    "print(",
    """
library, module, free = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
assert cuda.cuLibraryLoadData(ctypes.byref(library), b"x", None, None, 0, None, None, 0) == 0
assert cuda.cuLibraryGetModule(ctypes.byref(module), library) == 0
import time; time.sleep(0.25)
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(""",
)


def test_ps_shows_what_was_declared_and_what_was_measured(
    run: Run, start: Callable[..., subprocess.Popen[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    machine = write_machine(tmp_path, gpus=1, context_memory="100MiB", module_memory="64MiB")
    environment["FAKEDRIVER_MACHINE"] = str(machine)
    process = start("run", "--memory", "8GiB", "--", sys.executable, "-c", LAZY, str(GIB))
    assert line(process).split()[1] == "0"
    (quota,) = json.loads(run("ps", "--json").stdout)["quotas"]
    (gpu,), (entry,) = quota["gpus"], quota["processes"]
    declared, undeclared = GIB + (100 << 20), 64 << 20
    assert (gpu["declared_bytes"], gpu["undeclared_bytes"], gpu["agent_undeclared_bytes"]) == (
        declared,
        undeclared,
        0,
    )
    assert (gpu["used_bytes"], gpu["measured_bytes"]) == (declared + undeclared, declared + undeclared)
    assert gpu["drift_bytes"] == entry["gpus"][0]["drift_bytes"] == undeclared
    heading, row, detail, _, promised, sums = (
        re.split(r"\s{2,}", text.strip()) for text in run("ps").stdout.splitlines()
    )
    assert heading[-6:] == ["LIMIT", "USED", "DECLARED", "MEASURED", "DRIFT", "PEAK"]
    assert row[-6:] == ["8 GiB", "1.2 GiB", "1.1 GiB", "1.2 GiB", "64 MiB", "1.1 GiB"]
    assert detail[-5:] == row[-5:]
    assert promised == ["GPU", "MEMORY", "PROMISED", "USED"]
    assert sums == [gpu["uuid"], "24 GiB", "8 GiB", "1.2 GiB"]


def test_ps_inside_a_quota_does_not_take_the_librarys_word_for_nvmls(
    run: Run, start: Callable[..., subprocess.Popen[str]]
) -> None:
    words = [*VCUDA, "ps", "--json"]
    nested = f"{CLIENT.rpartition('sys.stdin')[0]}import os; os.system({shlex.join(words)!r})"
    result = run("run", "--memory", "8GiB", "--", sys.executable, "-c", nested, str(GIB))
    (quota,) = json.loads(result.stdout.splitlines()[1])["quotas"]
    (gpu,) = (gpu for gpu in quota["gpus"] if gpu["used_bytes"])
    assert gpu["measured_bytes"] is None and gpu["declared_bytes"] == gpu["used_bytes"]


def test_ps_live_in_a_terminal(
    start: Callable[..., subprocess.Popen[str]], environment: dict[str, str]
) -> None:
    process = start("run", "--memory", "8GiB", "--gpu", "1", "--", sys.executable, "-c", CLIENT, str(3 * GIB))
    assert line(process).split()[1] == "0"
    live = {**environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    with Terminal([*VCUDA, "ps", "--watch", "0.1"], env=live) as terminal:
        for _ in range(6):  # more than one picture
            terminal.read_until("8 GiB")
        terminal.type("\x03")
        assert terminal.wait() == 0
    assert "Traceback" not in terminal.text
    assert re.search(r"GPU-[0-9a-f]{8} ", terminal.text), (
        "its beginning in the first table, whole in the second"
    )
    assert re.search(r"GPU(-[0-9a-f]+){5} ", terminal.text)
