# SPDX-License-Identifier: Apache-2.0
"""`gigaslice rewrite`: what is printed where, exit codes, and that no file is changed."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gigaslice_cli import frame

POD = """apiVersion: v1
kind: Pod
metadata:
  name: trainer
spec:
  containers:
    - name: trainer
      resources:
        limits:
          nvidia.com/gpu: 1
          nvidia.com/gpumem: 3000 # a little less than 3 GiB
"""
Run = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(*words: object) -> tuple[int, str, list[str]]:
        code = frame.main(["rewrite", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err.splitlines()

    return _run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    return path


def test_a_diff_and_notes_with_their_lines_and_no_change(run: Run, file: Path) -> None:
    code, out, err = run(file)
    assert code == 0
    assert "-          nvidia.com/gpumem: 3000 # a little less than 3 GiB\n" in out
    assert "+          gigaslice.io/vgpu-memory: 3 # a little less than 3 GiB\n" in out
    assert err[0].startswith(f"{file}:11: note: container trainer: nvidia.com/gpumem: 3000 is 3 GiB")
    assert err[1] == "gigaslice rewrite: 1 pod rewritten, 0 left as written, in 1 file"
    assert file.read_text() == POD
    assert sorted(file.parent.iterdir()) == [file]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("ending", ["", "\n"])
def test_the_diff_is_one_that_git_applies(
    run: Run, file: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text(POD.rstrip() + ending)
    _, diff, _ = run("pod.yaml")
    subprocess.run(["git", "apply", "-"], input=diff.encode(), check=True)
    assert run("pod.yaml")[:2] == (0, "")
    assert "gigaslice.io/vgpu-memory: 3 " in file.read_text()


def test_a_directory_is_one_stream_of_manifests(run: Run, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.yaml").write_text(POD.rstrip())
    (tmp_path / "b" / "c.json").write_text(json.dumps(yaml.safe_load(POD)))
    (tmp_path / "README.md").write_text("no: [manifest")
    code, out, err = run("-o", "manifest", tmp_path)
    assert code == 0
    first, second = yaml.safe_load_all(out)
    assert first == second
    assert first["spec"]["containers"][0]["resources"] == {"limits": {"gigaslice.io/vgpu-memory": 3}}
    assert err[-1].endswith("2 pods rewritten, 0 left as written, in 2 files")


def test_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(POD.replace("\n", "\r\n").encode())))
    code, out, err = run("-", "--format=manifest")
    assert code == 0
    assert "gigaslice.io/vgpu-memory: 3" in out
    assert err[0].startswith("-:11: note: ")


def test_something_that_is_left_is_exit_code_1(run: Run, file: Path) -> None:
    file.write_text(POD.replace("gpumem: 3000", "gpumem-percentage: 50"))
    code, out, err = run(file)
    assert (code, out) == (1, "")
    assert err[0].startswith(f"{file}:11: left: container trainer: nvidia.com/gpumem-percentage: 50 depends")
    assert run(file, "--gpu-size", "80GiB")[0] == 0


def test_the_clusters_own_numbers(run: Run, file: Path) -> None:
    words = ("--slice", "512MiB", "--resource", "x.io/m", "--memory-factor", "2", "-o", "manifest")
    assert "x.io/m: 12 #" in run(file, *words)[1]
    file.write_text(POD.replace("gpumem: 3000", "other: 1"))
    assert "gigaslice.io/vgpu-memory: 8\n" in run(file, "--memory", "8GiB", "-o", "manifest")[1]
    assert "x.io/whole: 1\n" in run(file, "--whole-gpus", "x.io/whole", "-o", "manifest")[1]


@pytest.mark.parametrize(("words", "says"), [
    (("--gpu-size", "80GB"), "--gpu-size"),
    (("--slice", "0"), "--slice"),
    (("--memory", "x"), "--memory"),
    (("--memory-factor", "0"), "--memory-factor"),
    (("--resource", "nogroup"), "--resource"),
    (("--gpu-size", "1MiB"), "less than a slice"),
    (("--formt", "diff"), "--formt"),
])  # fmt: skip
def test_a_mistake_in_an_option_is_exit_code_2(
    run: Run, file: Path, words: tuple[str, ...], says: str
) -> None:
    code, out, err = run(file, *words)
    assert (code, out) == (2, "")
    assert says in err[0]


def test_a_file_that_is_no_manifest_is_said_beside_the_others(run: Run, file: Path) -> None:
    chart, binary = file.parent / "chart.yaml", file.parent / "binary.yaml"
    chart.write_text("kind: Pod\n{{ if .Values.x }}\na: 1\n")
    binary.write_bytes(b"\xff\xfe")
    (file.parent / "empty").mkdir()
    code, out, err = run(file, chart, binary, file.parent / "missing.yaml", file.parent / "empty")
    assert code == 2
    assert "+          gigaslice.io/vgpu-memory: 3" in out
    text = "\n".join(err)
    assert re.search(r"chart.yaml: line [23]: is no YAML", text) and "helm template" in text
    assert "binary.yaml: is no text in UTF-8" in text
    assert "missing.yaml: No such file or directory" in text
    assert "empty: has no .yaml, .yml, .json file in it" in text
