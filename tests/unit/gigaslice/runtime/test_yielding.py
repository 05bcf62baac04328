# SPDX-License-Identifier: Apache-2.0
import asyncio

from gigaslice.runtime.yielding import in_pieces, with_breaks


def walk(items, seconds_each):
    """What was worked on, and the other task's steps ("-") in between, on a clock that only the work moves."""
    now, done = [0.0], []

    async def other():
        while True:
            done.append("-")
            await asyncio.sleep(0.0001)

    async def main():
        task = asyncio.create_task(other())
        async for item in with_breaks(items, lambda: now[0], 0.5):
            done.append(item)
            now[0] += seconds_each
        task.cancel()

    asyncio.run(main())
    return done


def pieces(done):
    """Items that were worked on without a break between them."""
    return [len(piece) for piece in "".join(map(str, done)).split("-") if piece]


def test_others_have_their_turn_between_two_pieces_of_work():
    done = walk([1, 2, 3, 4, 5], 0.25)
    assert [item for item in done if item != "-"] == [1, 2, 3, 4, 5]
    assert pieces(done) == [2, 2, 1]


def test_one_long_item_is_a_piece_of_its_own():
    assert pieces(walk([1, 2, 3], 9.0)) == [1, 1, 1]


def test_short_work_has_no_breaks():
    assert pieces(walk(range(9), 0.0)) == [9]
    assert pieces(walk([], 9.0)) == []


def test_work_in_steps_returns_its_result_and_lets_others_in():
    now, done = [0.0], []

    def steps(count):
        for step in range(count):
            done.append(step)
            now[0] += 0.001
            yield
        return "found"

    async def other():
        while True:
            done.append("-")
            await asyncio.sleep(0.0001)

    async def main(count):
        task = asyncio.create_task(other())
        found = await in_pieces(steps(count), lambda: now[0], 0.003)
        task.cancel()
        return found

    assert asyncio.run(main(9)) == "found"
    assert pieces(done) == [3, 3, 3]
    assert asyncio.run(main(0)) == "found"
