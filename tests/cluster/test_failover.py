# SPDX-License-Identifier: Apache-2.0
"""Replicas that are killed or stopped in the midst of a burst, and what is cut, late or wrong between the processes.

After each of them no GPU is promised twice and every pod that fits is bound. Messages are counted by a proxy, so that a
fault meets each message of a small burst once.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import roles
from tests.cluster.control_plane import ControlPlane, until
from tests.cluster.pairs import Burst, Pair, running
from tests.cluster.proxy import PASS, Answer, Proxy

_numbers = itertools.count()
LONG = 240.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def burst(roles_plane: ControlPlane) -> Iterator[Burst]:
    with Burst(roles_plane, f"failover-{next(_numbers)}") as found:
        yield found
        found.check()


def leader(plane: ControlPlane) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{roles.NAMESPACE}/leases/gigaslice-scheduler-service"
    return str(plane.admin.get(path)["spec"].get("holderIdentity", ""))


def test_the_leader_is_killed_in_a_burst(roles_plane: ControlPlane, burst: Burst, folder: Path) -> None:
    first, second = (Pair(roles_plane, folder, f"kill-{name}") for name in "ab")
    with running(first, second):
        first.start()
        burst.make(1, 3, "first")
        until(lambda: burst.bound() == 1, LONG)
        second.start()
        burst.make(30, 3)
        until(lambda: burst.bound() > 4, LONG)
        first.signal(signal.SIGKILL)
        begun = time.monotonic()
        burst.make(9, 3, "later")
        until(lambda: burst.bound() == 40, LONG)
        assert leader(roles_plane) in ("kill-b", "")
        print(f"all bound {time.monotonic() - begun:.1f} s after the leader was killed")


@pytest.mark.parametrize("part", ["both", "service", "scheduler"])
def test_the_leader_is_stopped_for_longer_than_its_lease(
    roles_plane: ControlPlane, burst: Burst, folder: Path, part: str
) -> None:
    first, second = (Pair(roles_plane, folder, f"stop-{part}-{name}") for name in "ab")
    with running(first, second):
        first.start()
        burst.make(1, 3, "first")
        until(lambda: burst.bound() == 1, LONG)
        second.start()
        burst.make(24, 3)
        until(lambda: burst.bound() > 4, LONG)
        stopped = [first.scheduler] * (part != "service") + [first.service] * (part != "scheduler")
        for one in stopped:
            assert one is not None
            one.send_signal(signal.SIGSTOP)
        burst.make(15, 3, "later")
        time.sleep(25)
        for one in stopped:
            assert one is not None
            one.send_signal(signal.SIGCONT)
        until(lambda: burst.bound() == 40, LONG)
        time.sleep(3)
        burst.check()


@pytest.mark.parametrize("fault", [Answer(cut=True, effect=False), Answer(cut=True), Answer(status=500)])
def test_each_message_between_kube_scheduler_and_service_is_cut_once(
    roles_plane: ControlPlane, burst: Burst, folder: Path, fault: Answer
) -> None:
    pair = Pair(roles_plane, folder, f"cut-{next(_numbers)}")
    seen, at = itertools.count(), [-1]
    with running(pair), Proxy(pair.port) as proxy:

        def hook(method: str, target: str, body: bytes) -> Answer:
            return fault if next(seen) == at[0] else PASS

        proxy.hook = hook
        pair.start(ahead=proxy.port)
        count = 0
        for number in range(8):
            seen, at[0] = itertools.count(), number
            burst.make(3, 5, f"m{number}")
            count += 3
            until(lambda count=count: burst.bound() == count, LONG)  # type: ignore[misc]
            assert next(seen) > number or number > 5


@pytest.mark.parametrize("what", ["cut", "lost answer", "killed", "killed after"])
def test_each_message_between_service_and_api_server_fails_once(
    roles_plane: ControlPlane, burst: Burst, folder: Path, what: str
) -> None:
    """Watches and lists apart, which a service that is killed begins anew."""
    seen, at = itertools.count(), [-1]
    done: list[str] = []
    with Proxy(roles_plane.port, folder) as proxy:
        pair = Pair(roles_plane, folder, f"api-{what.replace(' ', '-')}", before=proxy.port)

        def hook(method: str, target: str, body: bytes) -> Answer:
            if method == "GET" and "/leases/" not in target:
                return PASS
            if next(seen) != at[0]:
                return PASS
            done.append(f"{method} {target}")
            if what.startswith("killed"):
                assert pair.service is not None
                pair.service.kill()
            return Answer(cut=True, effect=what in ("lost answer", "killed after"))

        proxy.hook = hook
        with running(pair):
            pair.start()
            count = 0
            for number in range(5):
                seen, at[0] = itertools.count(), number
                burst.make(3, 5, f"m{number}")
                count += 3
                end = time.monotonic() + LONG
                while burst.bound() < count:
                    assert time.monotonic() < end, done
                    if pair.service is not None and pair.service.poll() is not None:
                        pair.start_service()
                    time.sleep(0.1)
            assert len(done) >= 3, done
            print(f"{what}: {done}")


def test_a_slow_api_server(roles_plane: ControlPlane, burst: Burst, folder: Path) -> None:
    """Each answer to the service takes two to five seconds."""
    choices = random.Random(7)
    with Proxy(roles_plane.port, folder) as proxy:
        pair = Pair(roles_plane, folder, "slow", before=proxy.port)
        with running(pair):
            pair.start()
            burst.make(1, 3, "first")
            until(lambda: burst.bound() == 1, LONG)
            proxy.hook = lambda method, target, body: Answer(delay=choices.uniform(2, 5))
            burst.make(19, 3)
            begun = time.monotonic()
            until(lambda: burst.bound() == 20, LONG)
            print(f"20 pods bound after {time.monotonic() - begun:.1f} s")


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
@pytest.mark.parametrize("effect", [False, True])
def test_one_in_three_answers_of_the_api_server_is_an_error(
    roles_plane: ControlPlane, burst: Burst, folder: Path, status: int, effect: bool
) -> None:
    choices = random.Random(status)
    with Proxy(roles_plane.port, folder) as proxy:
        pair = Pair(roles_plane, folder, f"error-{status}-{effect}", before=proxy.port)

        def hook(method: str, target: str, body: bytes) -> Answer:
            if "watch=" in target or choices.random() > 1 / 3:
                return PASS
            return Answer(status=status, effect=effect and method != "GET")

        with running(pair):
            pair.start()
            proxy.hook = hook
            burst.make(20, 3)
            until(lambda: burst.bound() == 20, LONG)


def test_a_replica_whose_clock_is_an_hour_ahead(
    roles_plane: ControlPlane, burst: Burst, folder: Path
) -> None:
    """All times that it writes into leases are wrong."""
    with Proxy(roles_plane.port, folder) as proxy:

        def hook(method: str, target: str, body: bytes) -> Answer:
            if "/leases" not in target or not body:
                return PASS
            document = json.loads(body)
            for key in ("renewTime", "acquireTime"):
                if document["spec"].get(key):
                    document["spec"][key] = "2031" + document["spec"][key][4:]
            return Answer(body=json.dumps(document).encode())

        proxy.hook = hook
        first = Pair(roles_plane, folder, "clock-a", before=proxy.port)
        second = Pair(roles_plane, folder, "clock-b")
        with running(first, second):
            first.start()
            burst.make(20, 3)
            until(lambda: burst.bound() > 4, LONG)
            second.start()
            first.signal(signal.SIGKILL)
            until(lambda: burst.bound() == 20, LONG)


def test_the_api_server_is_killed_and_started_again(
    roles_plane: ControlPlane, burst: Burst, folder: Path
) -> None:
    pair = Pair(roles_plane, folder, "restart")
    with running(pair):
        pair.start()
        burst.make(20, 3)
        until(lambda: burst.bound() > 4, LONG)
        roles_plane.restart()
        burst.make(20, 3, "later")
        until(lambda: burst.bound() == 40, LONG)
