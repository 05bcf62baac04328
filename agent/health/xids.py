# SPDX-License-Identifier: Apache-2.0
"""The effect of each Xid on the GPU: one table, and a rule for numbers that are not in it. Pure.

Meaning and action are those of NVIDIA's catalogue (immediate action, Ampere and later), as of September 2026:
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Where the catalogue names a workflow, has no
action, or this table says something else, the note tells why. A program must not be able to take a GPU from its
neighbours by its own bugs, so nothing that the catalogue answers with a restart of the application makes a GPU
unhealthy, nor do the six numbers that NVIDIA's device plugin passes over (13, 31, 43, 45, 68, 109). Numbers that the
catalogue calls unused are not here, but for the encoders of older GPUs. Tests: tests/unit/agent/health/test_xids.py,
row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["SOURCE", "XIDS", "Xid", "XidEffect", "xid_row"]

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"


class XidEffect(Enum):
    """What an Xid means for the health of the GPU."""

    NOTICE = "notice"
    """Nothing is wrong with the GPU, or another Xid says what is."""
    APPLICATION = "application"
    """A program has failed, by its own fault or with the loss of its own work; the GPU goes on."""
    UNHEALTHY = "unhealthy"
    """No new containers until the GPU has been quiet for the cooldown."""
    RESET = "reset"
    """As UNHEALTHY; the GPU is to be reset when it is empty."""
    REBOOT = "reboot"
    """As UNHEALTHY; the machine is to be rebooted."""

    @property
    def fatal(self) -> bool:
        """Whether the GPU gets no new containers."""
        return self in (XidEffect.UNHEALTHY, XidEffect.RESET, XidEffect.REBOOT)


@dataclass(frozen=True, slots=True)
class Xid:
    """One number. action: the catalogue's immediate action; note: why the effect is not simply that."""

    number: int
    meaning: str
    effect: XidEffect
    action: str
    note: str = ""

    @property
    def text(self) -> str:
        """For people: what it is, and what mends it where something does. Says nothing about how long that takes."""
        mends = {
            XidEffect.RESET: "; a reset of the GPU when it is empty mends it",
            XidEffect.REBOOT: "; only a new start of the machine mends it",
        }
        return f"Xid {self.number}: {self.meaning}{mends.get(self.effect, '')}"


_APP, _NOTICE, _UNHEALTHY, _RESET = (
    XidEffect.APPLICATION,
    XidEffect.NOTICE,
    XidEffect.UNHEALTHY,
    XidEffect.RESET,
)
_ENGINES = {
    "copy engine error": (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
    "video decoder error": (68, 83, 84, 88, 89, 96, 97, 98),
    "JPEG decoder error": (82, 99, 100, 101, 102, 103, 104, 105),
    "optical flow error": (86, 139),
}
_ENCODERS = (47, 65, 73, 142)
_BY_DRIVER = "the driver says by its recovery action whether a reset is needed"
_NVLINK = "its parts are decoded from the kernel log only; " + _BY_DRIVER

_ROWS = (
    Xid(8, "the GPU stopped processing a program's work", _APP, "RESTART_APP"),
    Xid(11, "invalid push buffer", _APP, "RESTART_APP"),
    Xid(13, "graphics engine exception", _APP, "RESTART_APP"),
    Xid(14, "unused", _NOTICE, "IGNORE"),
    Xid(25, "illegal push buffer", _APP, "RESTART_APP"),
    Xid(31, "memory page fault of a program", _APP, "RESTART_APP"),
    Xid(32, "corrupted push buffer", _APP, "RESTART_APP"),
    Xid(37, "driver firmware error", _NOTICE, "IGNORE"),
    Xid(38, "driver firmware error", _NOTICE, "IGNORE"),
    Xid(43, "a program's channel stopped", _NOTICE, "IGNORE"),
    Xid(44, "engine fault during a context switch", _NOTICE, "IGNORE"),
    Xid(45, "a program was cleaned up", _NOTICE, "WORKFLOW_XID_45", "follows another error, or a killed program"),
    Xid(46, "the GPU stopped processing", _RESET, "RESET_GPU"),
    Xid(48, "double bit memory error", _RESET, "WORKFLOW_XID_48", "the workflow ends in a reset of the GPU"),
    Xid(54, "auxiliary power is not connected", _UNHEALTHY, "CHECK_MECHANICALS", "a technician has to check the board"),
    Xid(60, "video processor exception", _APP, "RESTART_APP"),
    Xid(62, "micro-controller halt", _RESET, "RESET_GPU"),
    Xid(63, "memory row marked for remapping", _NOTICE, "IGNORE"),
    Xid(64, "memory row could not be remapped", _RESET, "RESET_GPU"),
    Xid(66, "illegal access by the driver", _NOTICE, "IGNORE"),
    Xid(67, "illegal access by the driver", _NOTICE, "IGNORE"),
    Xid(69, "graphics engine class error", _APP, "RESTART_APP"),
    Xid(74, "NVLink error", _UNHEALTHY, "WORKFLOW_NVLINK_ERR", _NVLINK),
    Xid(78, "vGPU start error", _NOTICE, "UPDATE_SWFW", "of virtual machines; not used here"),
    Xid(79, "the GPU has fallen off the bus", XidEffect.REBOOT, "RESTART_BM"),
    Xid(80, "corrupted data sent to the GPU", _APP, "RESTART_APP"),
    Xid(92, "many single bit memory errors", _NOTICE, "IGNORE"),
    Xid(93, "wear limit of the InfoROM", _NOTICE, "IGNORE"),
    Xid(94, "contained memory error", _APP, "RESTART_APP", "the counter of such errors decides about the GPU"),
    Xid(95, "uncontained memory error", _RESET, "RESET_GPU"),
    Xid(106, "test message", _NOTICE, "IGNORE"),
    Xid(107, "test message", _NOTICE, "IGNORE"),
    Xid(108, "NVLink remote translation error", _NOTICE, "IGNORE"),
    Xid(109, "context switch timeout", _APP, "RESET_GPU",
        "a program that hangs causes it too, and NVIDIA's device plugin passes it over; " + _BY_DRIVER),
    Xid(110, "security fault", _RESET, "RESET_GPU"),
    Xid(119, "the GPU's system processor does not answer", _RESET, "RESET_GPU"),
    Xid(120, "error of the GPU's system processor", _RESET, "RESET_GPU"),
    Xid(121, "error of the link to the CPU", _NOTICE, "IGNORE"),
    Xid(136, "link training failed", _RESET, "RESET_GPU"),
    Xid(137, "NVLink privilege error", _NOTICE, "IGNORE"),
    Xid(140, "unrecovered memory error", _RESET, "RESET_GPU"),
    Xid(141, "CUDA fast path error", _NOTICE, "IGNORE"),
    Xid(143, "the GPU could not be initialised", _RESET, "RESET_GPU"),
    *(Xid(number, "NVLink error", _UNHEALTHY, "WORKFLOW_NVLINK5_ERR", _NVLINK) for number in range(144, 151)),
    Xid(151, "key rotation error", _UNHEALTHY, "RESTART_VM", "of virtual machines; the program's keys are lost"),
    Xid(152, "DLA memory error", _NOTICE, "IGNORE"),
    Xid(153, "DLA timeout", _NOTICE, "IGNORE"),
    Xid(154, "the recovery action changed", _NOTICE, "XID_154", "the action itself is asked for"),
    Xid(155, "NVLink error defined by software", _RESET, "RESET_GPU"),
    Xid(156, "a faulty part was marked for retirement", _RESET, "RESET_GPU"),
    Xid(157, "a faulty part could not be retired", _NOTICE, "IGNORE"),
    Xid(158, "fatal timeout", _RESET, "RESET_GPU"),
    Xid(160, "a memory channel was marked for retirement", _NOTICE, "IGNORE"),
    Xid(161, "a memory channel could not be retired", _NOTICE, "IGNORE"),
    *(Xid(number, "power smoothing", _NOTICE, "", "no action in the catalogue") for number in range(162, 166)),
    Xid(159, "coherent link error of a program", _APP, "CHECK_UVM", "follows another Xid; " + _BY_DRIVER),
    Xid(166, "NVLink traffic before encryption was set up", _UNHEALTHY, "",
        "no action in the catalogue; of confidential computing"),
    Xid(167, "fatal timeout of the bus", _UNHEALTHY, "", "no action in the catalogue; " + _BY_DRIVER),
    Xid(168, "less memory than the GPU has", _UNHEALTHY, "",
        "turn ECC on or start the machine again; until then its slices are more than there is"),
    Xid(169, "micro-controller halt", _RESET, "", "no action in the catalogue; as Xid 62"),
    Xid(170, "NVLink interrupt in confidential computing", _UNHEALTHY, "", "no action in the catalogue"),
    *(Xid(number, "video encoder error", _APP, "CONTACT_SUPPORT", "an engine's error, as with the decoders")
      for number in _ENCODERS),
    Xid(171, "uncorrectable DRAM error", _NOTICE, "", "adds details to Xid 48"),
    Xid(172, "uncorrectable SRAM error", _NOTICE, "", "adds details to Xid 48"),
    *(Xid(number, text, _APP, "RESTART_APP") for text, numbers in _ENGINES.items() for number in numbers),
)  # fmt: skip

XIDS = {row.number: row for row in sorted(_ROWS, key=lambda row: row.number)}
"""By number."""


def xid_row(number: int) -> Xid:
    """The row of NUMBER; one that the table does not have makes a GPU unhealthy, which passes by itself."""
    return XIDS.get(number) or Xid(
        number, "unknown error", XidEffect.UNHEALTHY, "CONTACT_SUPPORT", "not in this version's table"
    )
