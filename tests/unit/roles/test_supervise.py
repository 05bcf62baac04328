import asyncio

import pytest

from agent.roles.supervise import run_together


@pytest.fixture
def ended():
    """Names of those that were cancelled and have cleaned up."""
    return []


async def forever(ended, name):
    try:
        await asyncio.sleep(3600)
    finally:
        ended.append(name)


async def returns():
    await asyncio.sleep(0)


async def fails():
    raise ValueError("why")


async def is_called_off():
    """As grpc does with the calls of a channel that somebody else closes."""
    await asyncio.sleep(0)
    raise asyncio.CancelledError


def test_when_the_one_that_leads_is_done_the_others_end_and_clean_up(ended):
    parts = {"a": forever(ended, "a"), "lead": returns(), "b": forever(ended, "b")}
    asyncio.run(run_together("lead", parts))
    assert sorted(ended) == ["a", "b"]


def test_a_failure_reaches_the_caller_and_ends_the_others(ended):
    with pytest.raises(ValueError, match="why"):
        asyncio.run(run_together("a", {"a": forever(ended, "a"), "b": fails()}))
    assert ended == ["a"]


def test_being_cancelled_cancels_all(ended):
    async def main():
        task = asyncio.create_task(run_together("a", {"a": forever(ended, "a"), "b": forever(ended, "b")}))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert sorted(ended) == ["a", "b"]


@pytest.mark.parametrize(("lead", "ends"), [("a", is_called_off), ("a", returns), ("poller", is_called_off)])
def test_a_part_that_ends_by_itself_has_failed(ended, lead, ends):
    with pytest.raises(RuntimeError, match="by itself: poller"):
        asyncio.run(run_together(lead, {"a": forever(ended, "a"), "poller": ends()}))
    assert ended == ["a"]
