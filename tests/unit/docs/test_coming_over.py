# SPDX-License-Identifier: Apache-2.0
"""The page for those who come over: what it says that we understand, we do; its example is what a pod may say."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gigaslice.core.model.annotations import ANNOTATIONS
from gigaslice.core.rewrite.gpu_request import RewriteSettings
from gigaslice.core.rewrite.manifest_text import rewrite_text
from gigaslice.core.rewrite.names import NAMES, ForeignPlace
from gigaslice_cli import frame
from tests.unit.docs.test_docs import ROOT, fences

PAGE = ROOT / "docs" / "coming-over.md"
ALIASES = {alias: row.name for row in ANNOTATIONS for alias in row.aliases}


def test_names_that_are_understood_as_they_are() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if "understood as they are" in line]
    pairs = {
        theirs: ours
        for row in rows
        for theirs, ours in zip(
            re.findall(r"`(nvidia\.com/\S+)`", row[1]),
            re.findall(r"`gigaslice\.io/(\S+)`", row[2]),
            strict=True,
        )
    }
    assert pairs and pairs.items() <= ALIASES.items()
    hami = {alias for alias in ALIASES if re.fullmatch(r"nvidia\.com/(no)?use-.*", alias)}
    assert pairs.keys() == hami, "all names of HAMi's that are understood stand in the table"


def test_the_example_asks_for_the_sum_of_what_hami_gives_each_gpu() -> None:
    text = PAGE.read_text()
    gpus, mebibytes = (int(re.search(rf"nvidia\.com/{name}: (\d+),", text)[1]) for name in ("gpu", "gpumem"))  # type: ignore[index]
    (pod,) = map(yaml.safe_load, fences(PAGE, "yaml"))
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"gigaslice.io/vgpu-memory": gpus * -(-mebibytes // 1024)}
    names = {f"gigaslice.io/{row.name}" for row in ANNOTATIONS}
    assert pod["metadata"]["annotations"].keys() <= names
    assert pod["metadata"]["annotations"]["gigaslice.io/gpus"] == str(gpus)


def test_the_example_is_what_the_command_makes_of_hamis() -> None:
    (theirs,) = map(yaml.safe_load, (text for text in fences(PAGE, "text") if "nvidia.com/gpumem" in text))
    (ours,) = map(yaml.safe_load, fences(PAGE, "yaml"))
    rewrite = rewrite_text(yaml.safe_dump(theirs), RewriteSettings())
    made = yaml.safe_load(rewrite.text)
    assert made["metadata"]["annotations"] == ours["metadata"]["annotations"]
    assert made["spec"]["containers"][0]["resources"] == ours["spec"]["containers"][0]["resources"]
    assert "schedulerName" not in made["spec"]


def test_the_answer_that_is_shown_is_the_commands(tmp_path: Path, monkeypatch, capsys) -> None:
    (shown,) = (text for text in fences(PAGE, "console") if "gigaslice rewrite" in text)
    prompt, diff_and_notes = shown.split("\n", 1)
    before = [line[1:] for line in diff_and_notes.splitlines() if re.match(r"[- ](?!-- )", line)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer.yaml").write_text("\n".join(["apiVersion: v1", "kind: Pod", *before]) + "\n")
    assert frame.main(prompt.removeprefix("$ gigaslice ").split()) == 0
    out, err = capsys.readouterr()
    assert out + err == diff_and_notes.rstrip("\n") + "\n"


def test_every_name_of_hamis_table_is_understood_or_none_of_a_manifest() -> None:
    section = PAGE.read_text().partition("## From HAMi\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    table = {name.partition(":")[0] for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    understood = {row.name.partition(":")[0] for row in NAMES if row.owner == "HAMi"}
    settings = {"deviceMemoryScaling", "deviceSplitCount", "hami.io/device-cordon", "0", "1"}
    metrics = {name for name in table if name.startswith("hami_")}
    assert table - settings - metrics <= understood
    documented = {row.name for row in NAMES if row.owner == "HAMi" and row.place is ForeignPlace.RESOURCE}
    assert documented <= table
