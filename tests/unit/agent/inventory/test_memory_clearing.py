# SPDX-License-Identifier: Apache-2.0
"""The kernel module's options as /proc/driver/nvidia/params shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.inventory.memory_clearing import is_switched_off

SHOWN = """ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 0
RegistryDwords: "{all}"
RegistryDwordsPerDevice: "{each}"
RmMsg: ""
"""


def shown(where: Path, of_all: str = "", of_each: str = "") -> Path:
    path = where / "params"
    path.write_text(SHOWN.format(all=of_all, each=of_each))
    return path


@pytest.mark.parametrize(
    "options",
    [
        "RMDisableScrubOnFree=1",
        "RMDisableScrubOnFree=0x1",
        "rmdisablescrubonfree=1",
        "PeerMappingOverride=1; RMDisableScrubOnFree = 1;",
        "RMDisableScrubOnFree=0;RMDisableScrubOnFree=1",
    ],
)
def test_the_option_switches_it_off(tmp_path: Path, options: str) -> None:
    assert is_switched_off(shown(tmp_path, options))
    assert is_switched_off(shown(tmp_path, "", "pci=0000:0b:00.0;" + options))


@pytest.mark.parametrize(
    "options",
    [
        "",
        "RMDisableScrubOnFree=0",
        "RMDisableScrubOnFree=0x0",
        "NoRMDisableScrubOnFree=1",
        "PeerMappingOverride=1",
    ],
)
def test_other_options_do_not(tmp_path: Path, options: str) -> None:
    assert not is_switched_off(shown(tmp_path, options, options))


def test_another_line_is_not_an_option(tmp_path: Path) -> None:
    path = shown(tmp_path)
    path.write_text(path.read_text().replace('RmMsg: ""', 'RmMsg: "RMDisableScrubOnFree=1"'))
    assert not is_switched_off(path)


def test_without_the_driver_nothing_is_said(tmp_path: Path) -> None:
    assert not is_switched_off(tmp_path / "params")
    assert not is_switched_off(tmp_path)
