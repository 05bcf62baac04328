import asyncio

import pytest

from agent.roles.supervise import run_together


def test_the_first_that_is_done_ends_all_and_they_clean_up():
    ended = []

    async def forever(name):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(name)

    async def short():
        await asyncio.sleep(0.01)

    asyncio.run(run_together("short", {"a": forever("a"), "short": short(), "b": forever("b")}))
    assert sorted(ended) == ["a", "b"]


def test_a_failure_reaches_the_caller_and_ends_the_others():
    ended = []

    async def forever():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    async def failing():
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        asyncio.run(run_together("a", {"a": forever(), "b": failing()}))
    assert ended == [1]


def test_being_cancelled_cancels_all():
    ended = []

    async def forever():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    async def main():
        task = asyncio.create_task(run_together("a", {"a": forever(), "b": forever()}))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == [1, 1]


async def is_called_off():
    """As grpc does with the calls of a channel that somebody else closes."""
    await asyncio.sleep(0)
    raise asyncio.CancelledError


async def returns():
    await asyncio.sleep(0)


@pytest.mark.parametrize(("lead", "ends"), [("a", is_called_off), ("a", returns), ("poller", is_called_off)])
def test_a_part_that_ends_by_itself_has_failed(lead, ends):
    ended = []

    async def forever():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    with pytest.raises(RuntimeError, match="by itself: poller"):
        asyncio.run(run_together(lead, {"a": forever(), "poller": ends()}))
    assert ended == [1]
