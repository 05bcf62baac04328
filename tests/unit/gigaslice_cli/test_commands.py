# SPDX-License-Identifier: Apache-2.0
"""What a user sees: lines and exit codes, never a stack."""

import os
import re

import pytest
import structlog

import vcuda
from agent import config
from gigaslice.role_settings import load
from gigaslice_cli import frame
from tests.fakes.nodes import uuid

INVENTORY = f"gpus:\n  - {{uuid: {uuid(0)}, model: NVIDIA L4, memory: 24GiB}}\n"


@pytest.fixture
def run(capsys):
    def _run(*arguments):
        code = frame.main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err.splitlines()

    return _run


@pytest.fixture
def inventory_file(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return str(path)


def test_version(run):
    assert run("version") == (0, f"gigaslice {vcuda.__version__}\n", [])


@pytest.mark.parametrize(
    "arguments",
    [(), ("nod",), ("node", "--slice"), ("status", "--foo"), ("version", "x"), ("node", "--sl=1GiB")],
)
def test_a_command_line_that_makes_no_sense_is_one_line(run, arguments):
    code, _, lines = run(*arguments)
    assert code == 2
    assert len(lines) == 1
    assert re.match(r"gigaslice( [a-z]+)?: error: ", lines[0])


@pytest.mark.parametrize("arguments, says", [
    (("--versoin",), "gigaslice: error: unrecognized arguments: --versoin; did you mean --version?"),
    (("nodse",), "gigaslice: error: there is no command 'nodse'; did you mean nodes?"),
    (("node", "--plcement", "gaia"), "unrecognized arguments: --plcement; did you mean --placement?"),
    (("explain", "podd"), "gigaslice explain pod NAME, or pod/NAME"),
    (("explain", "pod/a", "b"), "gigaslice explain pod NAME, or pod/NAME"),
    (("status", "-o", "jsn"), "argument --format/-o/--output: cannot be 'jsn'; did you mean json?"),
    (("top", "--formt", "json"), "gigaslice top: error: unrecognized arguments: --formt; did you mean --format?"),
    (("nodes", "--format", "tabel"), "argument --format/-o/--output: cannot be 'tabel'; did you mean table?"),
    (("nodes", "--format", "xyz"), "write one of table, wide, json, yaml, name, svg"),
    (("nods",), "gigaslice: error: there is no command 'nods'; did you mean nodes?"),
    (("dataset", "pac"), "gigaslice dataset: error: there is no command 'pac'; did you mean pack?"),
    (("dataset", "pack", "--frce", "a", "b"), "gigaslice dataset pack: error: unrecognized arguments: --frce"),
])  # fmt: skip
def test_a_mistake_says_of_which_command_it_is_and_what_may_be_meant(run, arguments, says):
    code, _, (line,) = run(*arguments)
    assert code == 2
    assert says in line
    own = line.partition(": error:")[0]
    assert line.endswith(f"; see {own} --help") or arguments[0] == "explain"


def test_every_mistake_has_its_line(run):
    code, _, lines = run(
        "node", "--slice", "8 apples", "--statedir", "/x", "--log-level=loud", "--poll-interval", "never"
    )
    assert code == 2
    assert len(lines) == 4, "/x belongs to the flag that there is not"
    assert any("did you mean --state-dir?" in line for line in lines)


def test_a_flag_cannot_be_shortened_by_chance(run):
    code, _, lines = run("node", "--pol", "1s")
    assert code == 2
    assert "--pol" in lines[0]


def test_mistakes_of_an_inventory(run, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("gpus:\n  - {uuid: x, model: y, memory: z}\nspeed: 1\n")
    code, _, lines = run("node", "--inventory", str(path), "--state-dir", str(tmp_path / "state"))
    assert code == 2
    assert len(lines) == 3
    assert not (tmp_path / "state").exists()


def test_no_driver_is_a_missing_environment(run, tmp_path, monkeypatch):
    import pynvml

    def refuse():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    code, _, lines = run("node", "--without-gpus", "exit", "--state-dir", str(tmp_path / "state"))
    assert code == 3
    assert len(lines) == 1
    assert "--inventory FILE" in lines[0]


@pytest.mark.parametrize("size", ["1KiB", "1B", "64KiB"])
def test_slices_too_small_for_the_kubelets_message(run, inventory_file, tmp_path, size):
    code, _, lines = run(
        "node", "--inventory", inventory_file, "--slice", size, "--state-dir", str(tmp_path / "state")
    )
    assert code == 2
    (line,) = lines
    assert "4 MiB" in line
    enough = line.rpartition("--slice ")[2].split()[0]
    assert vcuda.parse_size(enough) > vcuda.parse_size(size)


def test_a_checkpoint_of_a_newer_agent(run, inventory_file, tmp_path, monkeypatch):
    from agent.persistence import codec

    library = tmp_path / "libvcuda.so"
    library.write_bytes(b"\x7fELF")
    monkeypatch.setattr(vcuda, "install_library", lambda directory, source=None: library)
    state = tmp_path / "state"
    state.mkdir()
    (state / "checkpoint.json").write_bytes(codec.sealed(b"{}", version=99))
    code, _, lines = run(
        "node", "--inventory", inventory_file, "--state-dir", str(state), "--log-level", "error"
    )
    assert code == 1
    assert "version 99" in lines[-1]


@pytest.mark.parametrize("command", ["node", "status"])
def test_a_fault_of_ours_is_a_line_with_its_stack_above(capsys, monkeypatch, command):
    def broken(*arguments, **keywords):
        raise RuntimeError("a bug\nin two lines")

    structlog.reset_defaults()
    monkeypatch.setattr(frame, "_dispatch", broken)
    assert frame.main([command]) == 1
    out, err = capsys.readouterr()
    *stack, line = err.splitlines()
    assert line == (
        f"gigaslice {command}: error: internal error: RuntimeError: a bug in two lines; "
        "please report it with the lines above"
    )
    assert "internal error" in stack[0] and "in broken" in err and out == ""
    structlog.reset_defaults()


@pytest.mark.parametrize("command, service, directories", [
    ("node", "agent.roles.node.run", ["/var/lib/gigaslice"]),
    ("node --api=dra", "agent.roles.node.run", ["/var/lib/gigaslice", "/var/run/cdi"]),
    ("dataset", "gigaslice.roles.dataset_node.service.run", ["/var/lib/gigaslice-dataset", "/var/lib/kubelet"]),
])  # fmt: skip
def test_a_command_typed_without_flags_makes_no_directory_of_its_own_accord(
    run, monkeypatch, command, service, directories
):
    there, starts = os.path.lexists, []
    monkeypatch.setattr(os.path, "lexists", lambda path: str(path) not in directories and there(path))
    monkeypatch.setattr(service, lambda *settings: starts.append(settings))
    name, *flags = command.split()
    code, _, lines = run(name, *flags)
    assert code == 2 and not starts
    assert len(lines) == len(directories)
    for line, directory in zip(lines, directories, strict=True):
        assert line.startswith(f"gigaslice {name}: error: there is no {directory}, the default of --")
        assert f"={directory} to have it made" in line
    if command == "dataset":
        assert "the commands of this service are evict, pack, prefetch, ps, wait" in lines[0]
    wanted = [re.search(r"write (--\S+)", line).group(1) for line in lines]
    assert run(name, *flags, *wanted)[0] == 0 and len(starts) == 1
    monkeypatch.setattr(os.path, "lexists", lambda path: str(path) in directories or there(path))
    assert run(name, *flags)[0] == 0 and len(starts) == 2


def test_what_is_set_in_any_way_is_no_default(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("stateDir: /var/lib/gigaslice\n")
    for flags, environment in (
        ({"state-dir": "/var/lib/gigaslice"}, {}),
        ({}, {"GIGASLICE_STATE_DIR": "/var/lib/gigaslice"}),
        ({"config": str(path)}, {}),
    ):
        loaded = load(config.Config, flags, environment)
        assert "state_dir" not in loaded.defaulted and "slice_bytes" in loaded.defaulted
        assert loaded == load(config.Config, {}, {})


def test_help_lists_every_flag(capsys):
    with pytest.raises(SystemExit) as ended:
        frame.main(["node", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{field.flag}" in text for field in config.SETTINGS)
