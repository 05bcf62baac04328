# SPDX-License-Identifier: Apache-2.0
"""Listing GPUs from under a quota; what the driver answers there is in tests/integration/test_vcuda_nested.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vcuda import errors, machine, settings

UNDER = settings.UserSettings(Path("/b"), Path("/b/run-1-a"), {"VCUDA_DIR": "/b/run-1-a", "KEPT": "yes"})


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """The interpreter that is started is this shell script."""
    file = tmp_path / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))


def test_the_child_is_under_no_quota(tmp_path, monkeypatch):
    gpu = {"index": 0, "uuid": "GPU-1", "name": "L4", "memory_bytes": 24}
    answer = json.dumps({"driver": "580", "devices": [gpu]})
    child(tmp_path, monkeypatch, f'test -z "$VCUDA_DIR" && test "$KEPT" = yes && echo \'{answer}\'')
    choice = machine.choose([], UNDER)
    assert (choice.driver, choice.devices[0].memory_bytes) == ("580", 24)


def test_an_error_of_the_childs_is_raised_here(tmp_path, monkeypatch):
    answer = json.dumps({"error": ["UsageError", "there is no GPU '7'", "", "choose one of 0"]})
    child(tmp_path, monkeypatch, f'cat <<"END"\n{answer}\nEND')
    with pytest.raises(errors.UsageError, match="there is no GPU '7'; choose one of 0"):
        machine.choose(["7"], UNDER)


@pytest.mark.parametrize(
    ("script", "cause"), [("echo broken >&2; exit 3", "broken"), ("exit 3", "the process ended with 3")]
)
def test_a_child_that_fails_is_no_gpu(tmp_path, monkeypatch, script, cause):
    child(tmp_path, monkeypatch, script)
    with pytest.raises(
        errors.NoDriverError, match=f"^the GPUs cannot be listed outside of this quota: {cause}; "
    ):
        machine.choose([], UNDER)
