# SPDX-License-Identifier: Apache-2.0
"""Waiting for GPUs: what is said, what the probes and metrics tell, and when it ends."""

import os
import signal
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import LogCapture

from agent.config import Config
from agent.roles.gpu_wait import Bus, GpuWait, GpuWaitTimes
from gigaslice.core.errors import MissingError

QUICK = GpuWaitTimes(quick=0.0, log=0.02)
"""Nothing is waited for longer than it must be."""
NOTHING, GPU, DRIVER = Bus((), False), Bus(("0000:3b:00.0",), False), Bus(("0000:3b:00.0",), True)


@pytest.fixture
def logs():
    """What is logged, whatever other tests have set up."""
    before, capture = structlog.get_config(), LogCapture()
    level = structlog.make_filtering_bound_logger(0)
    structlog.configure(processors=[capture], wrapper_class=level, cache_logger_on_first_use=False)
    yield capture.entries
    structlog.configure(**before)


class Node:
    """A node whose NVML answers what a list says, one scan after the other; the last for ever."""

    def __init__(self, *answers, bus=(NOTHING,), address=None, times=GpuWaitTimes()):  # noqa: B008  (frozen)
        self.answers, self.buses, self.scans = list(answers), list(bus), 0
        config = Config(scan_interval=0.01, metrics_address=address, node_name="n", resource="r")
        self.wait = GpuWait(self.scan, self.bus, config, times=times)

    def scan(self):
        self.scans += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer()
        if isinstance(answer, str):
            raise MissingError(answer)
        return answer

    def bus(self):
        return self.buses.pop(0) if len(self.buses) > 1 else self.buses[0]


def values(text):
    return {
        (sample.name, sample.labels.get("reason", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_it_scans_until_there_is_something_and_says_why_once(logs):
    node = Node("no library", "no library", "no library", ["gpu"])
    assert node.wait.until_found(MissingError("no library")) == ["gpu"]
    assert node.scans == 4
    (said,) = [one for one in logs if one["event"] == "waiting for GPUs"]
    assert said["log_level"] == "info" and said["reason"] == "no-gpu"
    assert "no NVIDIA GPU is on the PCI bus; no library" in said["detail"]


def test_a_gpu_without_a_driver_is_a_warning(logs):
    node = Node("no library", ["gpu"], bus=(GPU,))
    node.wait.until_found(MissingError("no library"))
    (said,) = [one for one in logs if one["event"] == "waiting for GPUs"]
    assert (said["log_level"], said["reason"]) == ("warning", "gpu-unusable")


def test_another_reason_is_said_too(logs):
    node = Node("no library", "driver not loaded", ["gpu"])
    node.wait.until_found(MissingError("no library"))
    assert [one["detail"].rpartition("; ")[2] for one in logs if "detail" in one] == [
        "no library",
        "driver not loaded",
    ]


def test_a_driver_that_came_and_stays_out_of_reach_ends_the_container():
    """Its files are put into a container when that is made; nothing else brings them there."""
    node = Node("no library", bus=(GPU, GPU, DRIVER))
    with pytest.raises(MissingError, match="made anew"):
        node.wait.until_found(MissingError("no library"))
    assert node.scans > 3, "the module is there before its devices are"


def test_a_driver_that_was_there_from_the_beginning_is_waited_for():
    node = Node(*["no library"] * 20, ["gpu"], bus=(DRIVER,))
    assert node.wait.until_found(MissingError("no library")) == ["gpu"]
    assert node.scans == 21


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_ends(number):
    node = Node(lambda: os.kill(os.getpid(), number) or "no library")
    assert node.wait.until_found(MissingError("no library")) is None


def test_asked_to_end_during_a_look_that_finds_something_it_ends():
    def found_too_late():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        return ["gpu"]

    assert Node("no library", found_too_late).wait.until_found(MissingError("no library")) is None


def test_a_mistake_is_not_waited_for():
    node = Node(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        node.wait.until_found(MissingError("no library"))


def test_probes_and_metrics_are_answered_meanwhile(logs):
    asked, answers = threading.Event(), {}

    def scan():
        return ["gpu"] if asked.is_set() else "no library"

    node = Node(scan, bus=(GPU,), address=("127.0.0.1", 0))

    def ask():
        while not (ports := [one["port"] for one in logs if one["event"] == "metrics served"]):
            time.sleep(0.01)
        base = f"http://127.0.0.1:{ports[0]}"
        for path in ("healthz", "readyz", "metrics"):
            with urllib.request.urlopen(f"{base}/{path}", timeout=30) as answer:
                answers[path] = answer.read().decode()
        asked.set()

    asker = threading.Thread(target=ask)
    asker.start()
    assert node.wait.until_found(MissingError("no library")) == ["gpu"]
    asker.join()
    assert answers["healthz"] == answers["readyz"] == "ok\n"
    found = values(answers["metrics"])
    assert found["gigaslice_waiting_for_gpus", "gpu-unusable"] == 1
    assert found["gigaslice_kubelet_registered", ""] == 0


# --- a driver that hangs ----------------------------------------------------------------------------------------------


@pytest.fixture
def hanging():
    """An event: while it is not set, scans do not come back."""
    going_on = threading.Event()
    yield going_on
    going_on.set()


def said(logs, event="waiting for NVML"):
    return [one for one in logs if one["event"] == event]


@pytest.mark.parametrize("outcome", ["gpu", "no library"])
def test_a_driver_that_hangs_is_waited_for_and_told_of(hanging, logs, outcome):
    def scan():
        hanging.wait(60)
        return [outcome] if outcome == "gpu" else "no library"

    node = Node(scan, ["gpu"], times=QUICK)
    begun = []
    node.wait._begins = lambda: begun.append(1)

    def let_go():
        while len(said(logs)) < 3:
            time.sleep(0.01)
        hanging.set()

    helper = threading.Thread(target=let_go)
    helper.start()
    assert node.wait.until_found() == ["gpu"]
    helper.join()
    assert begun == [1]
    assert {one["log_level"] for one in said(logs)} == {"info"}, "so far it may merely be slow"
    assert len(said(logs, "waiting for GPUs")) == (outcome == "no library")


def test_what_takes_too_long_for_a_start_is_a_warning(hanging, logs):
    node = Node(lambda: hanging.wait(60) and ["gpu"], times=replace(QUICK, slow=0.0))
    threading.Timer(0.05, hanging.set).start()
    assert node.wait.until_found() == ["gpu"]
    assert {one["log_level"] for one in said(logs)} == {"warning"}
    assert "see dmesg" in said(logs)[0]["detail"]


def test_live_and_not_ready_while_it_hangs(hanging, logs):
    answers = {}
    node = Node(lambda: hanging.wait(60) and ["gpu"], bus=(GPU,), address=("127.0.0.1", 0), times=QUICK)

    def ask():
        while not (ports := [one["port"] for one in logs if one["event"] == "metrics served"]):
            time.sleep(0.01)
        for path in ("healthz", "readyz", "metrics"):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/{path}", timeout=30) as answer:
                    answers[path] = answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    answers[path] = error.code, error.read().decode()
        hanging.set()

    asker = threading.Thread(target=ask)
    asker.start()
    assert node.wait.until_found() == ["gpu"]
    asker.join()
    assert answers["healthz"] == (200, "ok\n")
    assert answers["readyz"] == (503, "the NVIDIA driver does not answer\n")
    assert values(answers["metrics"][1])["gigaslice_waiting_for_gpus", "driver-hangs"] == 1


@pytest.mark.parametrize("first", [None, MissingError("no library")])
def test_asked_to_end_while_it_hangs_it_ends(hanging, logs, first):
    node = Node(lambda: hanging.wait(60) and ["gpu"], times=GpuWaitTimes(quick=0.05, log=0.05))

    def end():
        while not said(logs):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=end)
    helper.start()
    assert node.wait.until_found(first) is None
    helper.join()
    assert not hanging.is_set(), "nothing waited for the driver"


def test_a_quick_first_look_is_not_waited_for_by_anybody():
    assert Node(["gpu"]).wait.until_found() == ["gpu"]
    with pytest.raises(MissingError, match="no library"):
        Node("no library").wait.until_found(exits=True)
    assert Node("no library", ["gpu"]).wait.until_found() == ["gpu"]


def test_a_slow_first_look_that_finds_nothing_ends_where_that_is_wanted(hanging):
    threading.Timer(0.1, hanging.set).start()
    with pytest.raises(MissingError, match="no library"):
        Node(lambda: hanging.wait(60) and "no library").wait.until_found(exits=True)
