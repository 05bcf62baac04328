import json

import pytest

from agent.commands import status_rows
from agent.health.health_files import GpuRecord, Report, write_report
from agent.limits.driver_limit_report import FILE, DriverLimitReport, PodWall
from agent.limits.driver_limit_report import write_report as write_limits
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.allocation.consumer import ContainerRef
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
