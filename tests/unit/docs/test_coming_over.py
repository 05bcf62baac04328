"""The page for those who come over: what it says that we understand, we do; its example is what a pod may say."""

from __future__ import annotations

import re

import yaml

from gigaslice.core.model.annotations import ANNOTATIONS
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
