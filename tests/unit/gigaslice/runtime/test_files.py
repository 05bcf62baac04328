# SPDX-License-Identifier: Apache-2.0
"""Files that are something else, and errors with their remedies; the whole agent over a directory of named pipes."""

import errno
import os

import pytest

from agent.health.health_files import Report, change_cordons, read_report, write_report
from agent.persistence.store import Store
from agent.roles.records import CODEC
from gigaslice.core.allocation.table import AllocationTable
from gigaslice.core.errors import GigasliceError, StorageError
from gigaslice.runtime.files import is_directory, open_file, read_file, remedy, replace_file
from gigaslice_cli.frame import main

INVENTORY = "gpus:\n  - uuid: GPU-00000000-0000-4000-8000-000000000001\n    model: L4\n    memory: 8GiB\n"


def test_a_file_is_read_up_to_the_bound(tmp_path):
    (tmp_path / "f").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    assert read_file(tmp_path / "link", 3) == b"123"
    assert read_file(tmp_path / "f", 100) == b"12345"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT])
def test_a_pipe_is_no_file_and_not_waited_for(tmp_path, flags):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_file(tmp_path / "pipe", flags)


@pytest.mark.parametrize("what", ["/dev/zero", "/", "/dev/null"])
def test_devices_and_directories_are_no_files(what):
    with pytest.raises(OSError, match="not a regular file"):
        read_file(what, 10)


def test_what_is_no_directory(tmp_path):
    assert is_directory(tmp_path) and not is_directory(tmp_path / "none")
    (tmp_path / "f").touch()
    assert not is_directory(tmp_path / "f") and not is_directory(tmp_path / "f" / "below")
    with pytest.raises(StorageError, match="shorter path"):
        is_directory(tmp_path / ("a" * 300))


@pytest.mark.parametrize("number, text", [
    (errno.EDQUOT, "quota"), (errno.ENOSPC, "make room"), (errno.EROFS, "writable again"), (errno.EIO, "dmesg"),
    (errno.ENAMETOOLONG, "shorter"), (errno.EXDEV, "permissions"), (None, "permissions"),
])  # fmt: skip
def test_every_error_has_a_remedy(number, text):
    assert text in remedy(OSError(number, "why"))


# --- named pipes in the place of every file -------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path):
    """A state directory as an agent has left it."""
    library = tmp_path / "libvcuda.so"
    library.write_bytes(b"\x7fELF library")
    store = Store(tmp_path / "state", library, codec=CODEC)
    store.open()
    store.probe()
    store.close()
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "k").mkdir()
    return tmp_path / "state"


def node(state, **more):
    flags = {
        "--state-dir": state, "--kubelet-dir": state.parent / "k", "--pod-resources": state.parent / "p.sock",
        "--inventory": state.parent / "inventory.yaml", "--metrics-address": "off", "--kube-api": "off",
    }  # fmt: skip
    return ["node", *(str(part) for pair in {**flags, **more}.items() for part in pair)]


NAMES = ["checkpoint.json", "checkpoint.json.previous", "lock", "cordon.json", "health.json", ".cordon.json.lock",
         ".cordon.json.new", ".health.json.new", "checkpoint.json.new", "checkpoint.json.probe"]  # fmt: skip


def replaced(state, name):
    (state / name).unlink(missing_ok=True)
    os.mkfifo(state / name)


@pytest.mark.parametrize("name", NAMES)
def test_commands_end_whatever_is_a_pipe(state, name, capsys):
    replaced(state, name)
    for words in (["status"], ["cordon", "GPU-1"], ["uncordon", "GPU-1"]):
        assert main([*words, "--state-dir", str(state)]) in (0, 1)
        assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_starts_or_says_why_whatever_is_a_pipe(state, name):
    replaced(state, name)
    store, said = Store(state, state.with_name("libvcuda.so"), codec=CODEC), []
    for step in (
        store.open, store.probe, store.tidy, store.sync, lambda: store._checkpoint.save(AllocationTable()),
        lambda: change_cordons(state, dict), lambda: read_report(state),
        lambda: write_report(state, Report("", (), {})),
    ):  # fmt: skip
        try:
            step()
        except GigasliceError as error:
            said.append(str(error))
    store.close()
    assert len(said) <= 3 and all("not a regular file" in line and name in line for line in said)
    fine = name.endswith((".new", ".probe", ".previous"))
    assert bool(said) != fine, (
        "what is ours alone is replaced, and the predecessor only needed without a checkpoint"
    )


@pytest.mark.parametrize("flag", ["--inventory", "--config"])
def test_a_pipe_is_no_configuration(state, flag, capsys):
    os.mkfifo(state / "pipe")
    assert main(node(state, **{flag: state / "pipe"})) == 2
    assert "not a regular file" in capsys.readouterr().err


# --- paths that are too long ----------------------------------------------------------------------------------------

LONG = ["/tmp/" + "a" * 300, "/tmp/" + "/".join(["a" * 200] * 25)]


@pytest.mark.parametrize("path", LONG, ids=["name", "path"])
@pytest.mark.parametrize("words", [
    ["status", "--state-dir"], ["cordon", "0", "--state-dir"], ["uncordon", "0", "--state-dir"],
    ["resize", "p", "--memory", "1GiB", "--state-dir"], ["topology", "--inventory"], ["node", "--config"],
    ["node", "--state-dir"], ["node", "--sysfs"], ["node", "--kubelet-dir"], ["node", "--pod-resources"],
    ["node", "--inventory"], ["doctor", "--state-dir"],
], ids=" ".join)  # fmt: skip
def test_a_path_that_is_too_long_is_said_to_be(words, path, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "GIGASLICE_STATE_DIR", str(tmp_path / "state")
    )  # the default is made for nobody who did not ask
    assert main([*words, path]) in (1, 2, 3)
    err = capsys.readouterr().err
    assert "too long" in err or "shorter" in err
    assert "internal error" not in err


def test_an_error_of_the_machine_is_no_internal_error(monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/state/x")

    monkeypatch.setattr("agent.commands.status_rows.collect", full)
    assert main(["status"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line == "gigaslice status: error: /state/x: No space left on device; make room on that file system"


# --- files that are replaced in one step ------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "f"
    (tmp_path / ".f.new").symlink_to(
        tmp_path / "elsewhere"
    )  # of another user, or of a writer that was killed
    replace_file(path, b"old", mode=0o640)
    replace_file(path, b"new", sync=True, suffix="7")
    assert path.read_bytes() == b"new" and [one.name for one in tmp_path.iterdir()] == ["f"]
    replace_file(path, b"x", mode=0o640)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("call", ["fchmod", "fsync", "rename"])
def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch, call):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    elif call == "rename":
        monkeypatch.setattr(type(path), "replace", full)
    else:
        monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="full"):
        replace_file(path, b"new", mode=0o600, sync=True)
    assert path.read_bytes() == b"old" and [one.name for one in tmp_path.iterdir()] == ["f"]
