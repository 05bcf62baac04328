# SPDX-License-Identifier: Apache-2.0
"""Sums of what quotas promise."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from vcuda import contexts, promises, quotas
from vcuda.limits import GpuLimit

from .conftest import GPU_A, GPU_B

GIB = 1 << 30


def test_what_may_lie_on_the_gpu_counts():
    a, b = promises.summed(
        [
            ("one", [GpuLimit(GPU_A, 16 * GIB), GpuLimit(GPU_B, GIB)], {GPU_A: 3}),
            ("two", [GpuLimit(GPU_A, 24 * GIB, physical_bytes=20 * GIB)], {GPU_A: 4}),
        ]
    )
    assert (a.uuid, a.promises, a.promised_bytes, a.used_bytes) == (
        GPU_A,
        ((20 * GIB, "two"), (16 * GIB, "one")),
        36 * GIB,
        7,
    )
    assert (b.uuid, b.promised_bytes, b.used_bytes) == (GPU_B, GIB, 0)


@pytest.mark.parametrize(("own", "others", "words"), [
    (8, [16], ""), (9, [16], "GPU 0 has 24 GiB, and 25 GiB of it are promised now (16 GiB to q0):"),
    (24, [], ""), (1, [6, 6, 6, 6], "(6 GiB to q3, 6 GiB to q2, 6 GiB to q1 and 1 more)"),
])  # fmt: skip
def test_the_warning(own, others, words):
    limits = [(f"q{number}", [GpuLimit(GPU_A, size * GIB)], {}) for number, size in enumerate(others)]
    (summed,) = promises.summed(limits) or [None]
    text = promises.overcommitted("GPU 0", 24 * GIB, own * GIB, summed)
    assert words in text and bool(words) == bool(text)


def test_a_cost_is_kept_for_one_driver(tmp_path: Path):
    contexts.keep(tmp_path, "580", {GPU_A: GIB})
    contexts.keep(tmp_path, "580", {GPU_B: 1 << 20, GPU_A: 0})
    assert contexts.measured(tmp_path, "580") == {GPU_A: GIB, GPU_B: 1 << 20}
    assert contexts.measured(tmp_path, "590") == {}
    contexts.keep(tmp_path, "590", {GPU_B: 2})
    assert contexts.measured(tmp_path, "590") == {GPU_B: 2}
    contexts.keep(tmp_path / "nowhere", "590", {GPU_B: 2})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"driver": "1"}',
        '{"driver": "1", "gpus": {"G": true, "H": "x", "I": 0, "J": 4294967296}}',
    ],
)
def test_a_damaged_record_says_nothing(tmp_path: Path, text: str):
    (tmp_path / "contexts.json").write_text(text)
    assert contexts.measured(tmp_path, "1") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks at other users' quotas, and can make some")
def test_root_sees_the_quotas_of_every_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    user = pwd.getpwnam("nobody").pw_uid
    real = Path.glob

    def glob(path: Path, pattern: str):
        return real(tmp_path / path.relative_to("/"), pattern)

    monkeypatch.setattr(Path, "glob", glob)
    mine = tmp_path / "run" / "user" / str(user) / "vcuda"
    mine.mkdir(parents=True)
    os.chown(mine, user, user)
    foreign = tmp_path / "run" / "user" / "4711" / "vcuda"
    foreign.mkdir(parents=True)
    os.chown(foreign, user, user)
    link = tmp_path / "run" / "user" / "12" / "vcuda"
    link.parent.mkdir()
    link.symlink_to(mine)
    assert quotas.other_bases(tmp_path / "own") == [mine]
    quota = quotas.create_in(mine, [GpuLimit(GPU_A, GIB)], ["python", "x.py"])
    os.chown(quota, user, user)
    assert quotas.all_quotas(tmp_path / "own") == [quota]
    shown = quotas.read_quota(quota)
    assert shown.name == "nobody: python x.py" and quotas.is_in_use(shown)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert quotas.other_bases(tmp_path / "own") == []
