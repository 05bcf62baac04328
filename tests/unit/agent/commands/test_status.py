# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import pytest

from agent.commands import status_rows
from agent.health.health_files import GpuRecord, Report, write_report
from agent.limits.driver_limit_report import FILE, DriverLimitReport, PodWall
from agent.limits.driver_limit_report import write_report as write_limits
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
from gigaslice.runtime.command_line import watch
from gigaslice_cli.frame import main
from tests.fakes.nodes import GIB, allocation, uuid


@pytest.fixture
def state_dir(tmp_path):
    library = tmp_path / "libvcuda.so"
    library.write_bytes(b"\x7fELF library")
    store = Store(tmp_path / "state", library, codec=CODEC)
    store.open()
    named = allocation(1, (0, range(8)), (1, range(2)), container=ContainerRef("default", "train", "main"))
    others = (allocation(2, (1, range(2, 6)), waiting=True), allocation(3, (0, range(8, 9)), ended=True))
    table = store.table
    for one in (named, *others):
        table = table.with_allocation(one)
    store.commit(table, (named, *others))
    (store.dirs.path(others[1].id) / "ledger").write_bytes(b"x")
    store.close()
    return tmp_path / "state"


def test_one_row_per_container_and_gpu(state_dir):
    rows = status_rows.collect(state_dir)
    assert [(row.pod, row.state, row.gpu, row.limit_bytes) for row in rows] == [
        ("train", "idle", uuid(0), 8 * GIB),
        ("train", "idle", uuid(1), 2 * GIB),
        (None, "waiting", uuid(1), 4 * GIB),
        (None, "unreadable", uuid(0), GIB),
    ]


def test_a_table_for_people(state_dir, capsys):
    assert main(["status", "--state-dir", str(state_dir)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["CONTAINER", "STATE", "GPU", "LIMIT", "USED", "PEAK", "PIDS"]
    assert "default/train/main" in lines[0]
    assert "8 GiB" in lines[0]
    assert "allocation 00000000" in lines[2]


A, B = "GPU-6e1b0a2c-0f3d-4a5b-8c7d-0123456789ab", "GPU-9f020000-0f3d-4a5b-8c7d-0123456789ab"


def test_on_a_terminal_uuids_are_short_but_in_the_list_of_gpus_and_states_have_colours(
    state_dir, monkeypatch
):
    rows = tuple(replace(row, gpu=A if row.gpu == uuid(0) else B) for row in status_rows.collect(state_dir))
    gpus = (GpuRecord(A, 0, "A", 24, True, False, ""),)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    piped = status_rows.as_table(rows)
    assert "\x1b" not in piped and piped.count(A) == piped.count(B) == 2
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = status_rows.as_table(rows)
    assert A not in shown and shown.count("GPU-6e1b0a2c ") == shown.count("GPU-9f020000 ") == 2
    assert "\x1b[33mwaiting\x1b[0m" in shown and "\x1b[31munreadable\x1b[0m" in shown
    assert A in status_rows.gpus_table(gpus) and "\x1b[32mhealthy\x1b[0m" in status_rows.gpus_table(gpus)


def test_it_is_watched(state_dir, capsys, monkeypatch):
    def sleep(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert main(["status", "--state-dir", str(state_dir), "--watch", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert len(json.loads(line)["allocations"]) == 4


HOSTILE = "a\u202eb\x00c\x1b[31md\re\nf\ud800"


def test_names_of_a_lying_api_server_act_on_no_terminal(tmp_path, capsys):
    library = tmp_path / "libvcuda.so"
    library.write_bytes(b"\x7fELF library")
    store = Store(tmp_path / "state", library, codec=CODEC)
    store.open()
    one = allocation(1, (0, range(8)), container=ContainerRef(HOSTILE, HOSTILE, HOSTILE))
    store.commit(store.table.with_allocation(one), (one,))
    store.close()
    write_report(
        tmp_path / "state", Report("boot", (GpuRecord(HOSTILE, 0, HOSTILE, 1, False, False, HOSTILE),), {})
    )
    capsys.readouterr()  # the log of the store
    assert main(["status", "--state-dir", str(tmp_path / "state")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)


def test_json_for_programs(state_dir, capsys):
    assert main(["status", "--state-dir", str(state_dir), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 1
    assert document["allocations"][0]["limit_bytes"] == 8 * GIB
    assert document["allocations"][0]["pids"] == []


def test_without_permission_the_remedy_is_said(state_dir, capsys, monkeypatch):
    import os

    real = os.open

    def guarded(path, *arguments, **keywords):
        if str(path).endswith("checkpoint.json"):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **keywords)

    monkeypatch.setattr("gigaslice.runtime.files.os.open", guarded)
    assert main(["status", "--state-dir", str(state_dir)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "as root" in line


def test_no_container_holds_anything():
    assert status_rows.as_table(()) == "no container holds a GPU slice"


def test_the_drivers_limits_are_told_and_a_damaged_report_of_them_hides_nothing_else(state_dir, capsys):
    wall = PodWall("default/train", uuid(0), 8 * GIB, None, GIB, "no dmem.max")
    report = DriverLimitReport("auto", "dmem", driver="615.10", pods=2, excess={uuid(1): GIB}, walls=(wall,))
    write_limits(state_dir, report)
    assert main(["status", "--state-dir", str(state_dir)]) == 0
    shown = capsys.readouterr().out
    assert "driver limits: dmem, for 2 pods" in shown and "no dmem.max" in shown
    assert f"the limits on {uuid(1)} exceed its memory by 1 GiB" in shown
    for content in (b"{broken", b"\xff", b'{"version": 7}', b"[]"):
        (state_dir / FILE).write_bytes(content)
        assert main(["status", "--state-dir", str(state_dir)]) == 0
        shown = capsys.readouterr().out
        assert "default/train/main" in shown and "driver limits: unknown" in shown
