# SPDX-License-Identifier: Apache-2.0
"""Kernel specifications for Jupyter: where they lie, what they start; only our own are replaced and removed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vcuda import errors, kernels

PYTHON = kernels.KernelPython(Path("/env/bin/python"), Path("/env"), 3)


def install(root: Path, name: str = "vcuda-8gib", **changes: object) -> kernels.KernelSpec:
    given: dict[str, object] = {
        "display_name": "Python 3 (8 GiB)",
        "launcher": ["/opt/bin/vcuda"],
        "quota": ["--memory", "8GiB"],
        "python": PYTHON,
    }
    return kernels.install(root, name, **given | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({"HOME": "/h"}, "/h/.local/share/jupyter"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/d"}, "/d/jupyter"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/d", "JUPYTER_DATA_DIR": "/j"}, "/j"),
        ({"HOME": "/h", "XDG_DATA_HOME": "", "JUPYTER_DATA_DIR": ""}, "/h/.local/share/jupyter"),
    ],
)
def test_the_users_directory_is_jupyters(environment: dict[str, str], first: str) -> None:
    assert kernels.spec_roots(environment)[0] == Path(first)


def test_all_that_jupyter_reads_once_each() -> None:
    environment = {"HOME": "/h", "JUPYTER_PATH": "/a::/b", "JUPYTER_DATA_DIR": "/b"}
    shared = ["/env/share/jupyter", "/usr/local/share/jupyter", "/usr/share/jupyter"]
    expected = [Path(path) for path in ("/b", "/a", *shared)]
    assert kernels.spec_roots(environment, [Path("/env"), Path("/usr/local")]) == expected


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", none)
    with pytest.raises(errors.UsageError, match="set HOME or JUPYTER_DATA_DIR"):
        kernels.spec_roots({})
    assert kernels.spec_roots({"JUPYTER_DATA_DIR": "/d"})[0] == Path("/d")


def test_what_is_installed(tmp_path: Path) -> None:
    spec = install(tmp_path)
    text = json.loads((tmp_path / "kernels" / "vcuda-8gib" / "kernel.json").read_text())
    kernel = ["/env/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert text["argv"] == ["/opt/bin/vcuda", "run", "--exec", "--memory", "8GiB", "--", *kernel]
    assert (text["language"], text["display_name"]) == ("python", "Python 3 (8 GiB)")
    assert "interrupt_mode" not in text, "the process that Jupyter signals is the kernel"
    assert list(kernels.find_specs([tmp_path / "missing", tmp_path])) == [spec]


def test_installing_again_replaces_ours_and_nothing_else(tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path, quota=["--memory", "4GiB"], display_name="Größe")
    (spec,) = kernels.find_specs([tmp_path])
    assert (spec.quota, spec.display_name) == (("--memory", "4GiB"), "Größe")
    assert [path.name for path in spec.directory.iterdir()] == ["kernel.json"]
    other = tmp_path / "kernels" / "python3"
    other.mkdir()
    for content in (
        '{"argv": ["python"], "display_name": "Python 3", "metadata": {"debugger": true}}',
        "{",
        "[]",
    ):
        (other / "kernel.json").write_text(content)
        with pytest.raises(errors.UsageError, match="there is another kernel python3"):
            install(tmp_path, "python3")
        with pytest.raises(errors.UsageError, match="no kernel python3 with a quota"):
            kernels.remove([tmp_path], "python3")
        assert (other / "kernel.json").read_text() == content


def test_the_one_that_jupyter_would_take_is_removed(tmp_path: Path) -> None:
    first, second = install(tmp_path / "a"), install(tmp_path / "b")
    roots = [tmp_path / "a", tmp_path / "b"]
    assert kernels.remove(roots, "vcuda-8gib") == first.directory
    assert list(kernels.find_specs(roots)) == [second]
    assert kernels.remove(roots, "vcuda-8gib") == second.directory
    with pytest.raises(errors.UsageError):
        kernels.remove(roots, "vcuda-8gib")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", ".x", "a b", "ä", "a\n"])
def test_names_that_jupyter_does_not_take(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.UsageError, match="is no name of a kernel"):
        install(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("")
    with pytest.raises(errors.PermissionDeniedError, match="JUPYTER_DATA_DIR"):
        install(tmp_path)


def test_interpreters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").write_text("#!/bin/sh\necho no\n")
    (tmp_path / "broken").chmod(0o755)
    for path, says in (("broken", "no Python that works"), ("missing", "no Python that works")):
        with pytest.raises(errors.UsageError, match=says):
            kernels.inspect_python(tmp_path / path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(errors.UsageError, match=r"it has no ipykernel; .* -m pip install ipykernel"):
        kernels.inspect_python(Path(sys.executable))
    (tmp_path / "ipykernel").mkdir()
    found = kernels.inspect_python(Path(sys.executable))
    assert found == kernels.KernelPython(Path(sys.executable), Path(sys.prefix), sys.version_info[0])
