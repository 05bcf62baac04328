# SPDX-License-Identifier: Apache-2.0
"""A dataset becomes complete in steps. A crash before or after each of them loses nothing that was fetched."""

import itertools

import pytest

from gigaslice.roles.dataset_node.store import cache, digest_of
from tests.unit.gigaslice.roles.dataset_node.store.conftest import KEYS


class Crash(BaseException):
    """The end of the process: no clean-up of the program's is made."""


@pytest.mark.parametrize("late", [False, True])
def test_a_crash_at_any_step_leaves_a_dataset_that_is_complete_or_resumed(world, monkeypatch, late):
    ends = []
    for crash in itertools.count():
        part = world.store.begin_fetch(world.metadata(1))
        part.image.write_bytes(b"\1" * 100)
        steps = itertools.count()

        def step(real, *given, steps=steps, crash=crash):
            if not late and next(steps) == crash:
                raise Crash
            found = real(*given)
            if late and next(steps) == crash:
                raise Crash
            return found

        with monkeypatch.context() as patched:
            for name in ("write_document", "sync_directory"):
                real = getattr(cache, name)
                patched.setattr(cache, name, lambda *given, real=real, step=step: step(real, *given))
            rename = cache.Path.replace
            patched.setattr(cache.Path, "replace", lambda *given, real=rename, step=step: step(real, *given))
            try:
                world.store.complete(part, digest_of(part.image))
            except Crash:
                pass
            else:
                break
        world.again()
        (found,) = world.store.stored()
        ends.append(found.complete)
        if found.complete:
            assert world.store.ready(KEYS[1]).digest == digest_of(world.root / f"state/objects/{KEYS[1]}.img")
            assert not list((world.root / "state/partial").iterdir())
            assert not world.store.evict([KEYS[1]])
        else:
            assert world.store.begin_fetch(world.metadata(1)).resumed
            assert (world.root / f"state/partial/{KEYS[1]}.img").read_bytes() == b"\1" * 100
            world.store.discard(KEYS[1])
    assert len(ends) > 4 and ends == sorted(ends), "resumed up to one step, and complete from there on"
    assert ends[-1]
