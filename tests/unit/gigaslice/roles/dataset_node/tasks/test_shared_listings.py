# SPDX-License-Identifier: Apache-2.0
"""Listings that pods share: how many there are, who gets which, and what is left when pods leave or a source fails."""

import asyncio
import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigaslice.core.dataset.errors import SourceError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources.listing_memory import ListingMemory
from gigaslice.roles.dataset_node.tasks.shared_listings import SharedListings
from tests.fakes.dataset_storage import DENIED, Bucket, MemoryStorage
from tests.fakes.eventually import until

COCO = SourceSpec.parse("s3://coco/train")
KEY = {"key": "k1"}


class Shelf:
    """One bucket, whose listings wait until `let`."""

    def __init__(self, young=0.0):
        self.bucket = Bucket({"a": b"one"}, key="k1", others={"k2"}, weight=50_000)
        self.bucket.list_hold = asyncio.Event()
        self.memory = ListingMemory()
        self.listings = SharedListings(
            MemoryStorage(coco=self.bucket), self.memory, young=young, gather=0.001
        )

    def asks(self, key="k1", spec=COCO):
        return asyncio.ensure_future(self.listings.take(spec, {"key": key}))

    async def begun(self, number):
        await until(lambda: self.bucket.listings == number)

    def let(self):
        self.bucket.list_hold.set()

    @property
    def empty(self):
        tasks = [one for one in asyncio.all_tasks() if one.get_name() == "dataset listing"]
        return (
            self.bucket.opened == self.bucket.closed
            and not len(self.listings)
            and not tasks
            and not self.memory.held
        )


def play(story):
    asyncio.run(asyncio.wait_for(story(), 60))


async def gone(*asking):
    """Cancels who asks; returns when they have left."""
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)
    assert all(one.cancelled() for one in asking)


def test_eight_that_ask_in_one_moment_share_one_listing():
    async def story():
        shelf = Shelf()
        shelf.let()
        found = await asyncio.gather(*(shelf.asks() for _ in range(8)))
        assert len({id(one) for one in found}) == 1
        assert (shelf.bucket.listings, shelf.bucket.opened, shelf.bucket.proofs) == (1, 1, 1)
        for one in found[1:]:
            await one.release()
        assert not shelf.bucket.closed, "one of them uses it still"
        await found[0].release()
        assert shelf.empty

    play(story)


def test_who_asks_during_a_listing_gets_the_next_one_and_shares_it_with_all_who_asked_meanwhile():
    async def story():
        shelf = Shelf()
        first = shelf.asks()
        await shelf.begun(1)
        others = [shelf.asks() for _ in range(7)]
        await asyncio.sleep(0.02)
        assert shelf.bucket.listings == 1, "one at a time"
        shelf.let()
        found = await asyncio.gather(first, *others)
        assert shelf.bucket.listings == 2
        assert found[0] is not found[1] and len({id(one) for one in found}) == 2
        for one in found:
            await one.release()
        assert shelf.empty

    play(story)


def test_a_listing_that_has_just_begun_begins_anew_for_all_who_ask_in_the_same_moment():
    async def story():
        shelf = Shelf(young=60)
        first = shelf.asks()
        await shelf.begun(1)
        shelf.bucket.files["b"] = b"new"
        others = [shelf.asks() for _ in range(3)]
        await shelf.begun(2)
        shelf.let()
        found = await asyncio.gather(first, *others)
        assert len({id(one) for one in found}) == 1
        assert [file.path for file in found[0].listing.entries] == [b"a", b"b"]
        assert (shelf.bucket.listings, shelf.bucket.opened, shelf.bucket.proofs) == (2, 2, 2), (
            "one of each file"
        )
        for one in found:
            await one.release()
        assert shelf.empty

    play(story)


def test_a_listing_begins_anew_only_once():
    async def story():
        shelf = Shelf(young=60)
        first = shelf.asks()
        await shelf.begun(1)
        second = shelf.asks()
        await shelf.begun(2)
        third = shelf.asks()
        await asyncio.sleep(0.02)
        assert shelf.bucket.listings == 2
        shelf.let()
        found = await asyncio.gather(first, second, third)
        assert found[0] is found[1] is not found[2]
        assert shelf.bucket.listings == 3
        for one in found:
            await one.release()
        assert shelf.empty

    play(story)


def test_a_listing_that_is_no_longer_young_goes_on():
    async def story():
        shelf = Shelf(young=0.03)
        first = shelf.asks()
        await shelf.begun(1)
        await asyncio.sleep(0.05)
        second = shelf.asks()
        await asyncio.sleep(0.02)
        assert shelf.bucket.listings == 1
        shelf.let()
        found = await asyncio.gather(first, second)
        assert found[0] is not found[1]
        for one in found:
            await one.release()
        assert shelf.empty

    play(story)


def test_who_asks_while_the_source_is_opened_gets_one_that_is_opened_later():
    async def story():
        shelf = Shelf(young=60)
        shelf.let()
        opened, go = asyncio.Event(), asyncio.Event()
        real = shelf.listings._open

        async def slow(*given):
            source = await real(*given)
            opened.set()
            await go.wait()
            return source

        shelf.listings._open = slow
        first = shelf.asks()
        await opened.wait()
        second = shelf.asks()
        await asyncio.sleep(0)
        go.set()
        found = await asyncio.gather(first, second)
        assert found[0] is found[1]
        assert (shelf.bucket.opened, shelf.bucket.listings) == (2, 1)
        for one in found:
            await one.release()
        assert shelf.empty

    play(story)


def test_a_failure_of_what_was_given_up_is_no_ones():
    async def story():
        shelf = Shelf(young=60)
        real = shelf.listings._open

        async def failing(*given):
            source = await real(*given)
            listed = source.list

            async def listing(limits):
                try:
                    return await listed(limits)
                except asyncio.CancelledError:
                    raise SourceError("given up") from None

            source.list = listing
            return source

        shelf.listings._open = failing
        first = shelf.asks()
        await shelf.begun(1)
        second = shelf.asks()
        await shelf.begun(2)
        shelf.let()
        found = await asyncio.gather(first, second)
        assert found[0] is found[1]
        for one in found:
            await one.release()
        assert shelf.empty

    play(story)


@pytest.mark.parametrize(
    ("other", "spec"),
    [
        ({"key": "k2"}, COCO),
        ({"key": "k1", "region": ""}, COCO),
        ({"key": "k1", "kez": "k1"}, COCO),
        (KEY, SourceSpec.parse("s3://coco/train", {"region": "eu"})),
        (KEY, SourceSpec.parse("s3://coco/other")),
    ],
)
def test_another_source_or_other_credentials_have_a_listing_of_their_own(other, spec):
    async def story():
        shelf = Shelf()
        mine = asyncio.ensure_future(shelf.listings.take(COCO, KEY))
        theirs = asyncio.ensure_future(shelf.listings.take(spec, other))
        await shelf.begun(2)
        shelf.let()
        found = await asyncio.gather(mine, theirs)
        assert found[0].source is not found[1].source
        for one in found:
            await one.release()
        assert shelf.empty

    play(story)


def test_the_order_of_a_secrets_keys_makes_no_difference():
    async def story():
        shelf = Shelf()
        shelf.let()
        secrets = ({"key": "k1", "region": "eu"}, {"region": "eu", "key": "k1"})
        found = await asyncio.gather(*(shelf.listings.take(COCO, one) for one in secrets))
        assert found[0] is found[1]
        for one in found:
            await one.release()

    play(story)


TEXTS = st.lists(st.tuples(st.text("ab:1", max_size=3), st.text("ab:1", max_size=3)), max_size=3).map(dict)


@given(TEXTS, TEXTS)
def test_only_equal_credentials_are_taken_for_equal(one, other):
    listings = SharedListings(MemoryStorage(), ListingMemory())
    assert (listings._key(COCO, one) == listings._key(COCO, other)) is (one == other)
    assert listings._key(COCO, one) != SharedListings(MemoryStorage(), ListingMemory())._key(COCO, one), (
        "of this process alone"
    )


def test_no_text_is_taken_for_two_others():
    listings = SharedListings(MemoryStorage(), ListingMemory())
    with_option = SourceSpec.parse("s3://coco/train", {"region": "eu"})
    asked = [(COCO, {"ab": "c"}), (COCO, {"a": "bc"}), (with_option, {}), (COCO, {"region": "eu"})]
    assert len({listings._key(*one) for one in asked}) == len(asked)


def test_a_queued_listing_is_still_joined_when_one_of_two_has_left_it():
    async def story():
        shelf = Shelf()
        first = shelf.asks()
        await shelf.begun(1)
        leaves, stays = shelf.asks(), shelf.asks()
        await asyncio.sleep(0.01)
        await gone(leaves)
        late = shelf.asks()
        shelf.let()
        for one in (first, stays, late):
            await (await one).release()
        assert shelf.bucket.listings == 2 and shelf.empty

    play(story)


def test_a_denied_one_shares_nothing_with_who_may_list():
    async def story():
        shelf = Shelf()
        mine = shelf.asks()
        await shelf.begun(1)
        with pytest.raises(SourceError, match=DENIED):
            await shelf.asks("wrong")
        shelf.let()
        await (await mine).release()
        assert shelf.empty

    play(story)


def test_a_change_between_two_that_ask_is_seen_by_the_second():
    async def story():
        shelf = Shelf()
        old = shelf.asks()
        await shelf.begun(1)
        asked = shelf.asks()
        shelf.bucket.files["b"] = b"new"
        shelf.let()
        found = await asyncio.gather(old, asked)
        assert [[file.path for file in one.listing.entries] for one in found] == [[b"a"], [b"a", b"b"]]
        later = await shelf.asks()
        assert later is not found[1], "what is done is given to no one who asks later"
        for one in (*found, later):
            await one.release()
        assert shelf.empty

    play(story)


def test_a_failure_is_the_same_for_all_who_waited_and_the_next_ones_try_again():
    async def story():
        shelf = Shelf()
        shelf.bucket.fails = [SourceError("gone"), SourceError("busy")]
        first = shelf.asks()
        await shelf.begun(1)
        others = [shelf.asks() for _ in range(3)]
        shelf.let()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [str(one) for one in found] == ["gone", "busy", "busy", "busy"]
        assert shelf.empty
        await (await shelf.asks()).release()

    play(story)


def test_a_refused_proof_is_shared_and_closes_the_source():
    async def story():
        shelf = Shelf()
        shelf.bucket.unreadable = {"k1"}
        shelf.let()
        found = await asyncio.gather(*(shelf.asks() for _ in range(3)), return_exceptions=True)
        assert [str(one) for one in found] == [f"a: {DENIED}"] * 3
        assert shelf.empty

    play(story)


def test_one_who_leaves_takes_nothing_from_the_others():
    async def story():
        shelf = Shelf()
        first, second = shelf.asks(), shelf.asks()
        await shelf.begun(1)
        await gone(first)
        shelf.let()
        await (await second).release()
        assert shelf.bucket.listings == 1 and shelf.empty

    play(story)


def test_a_listing_for_which_nothing_waits_is_given_up_and_the_next_one_begins():
    async def story():
        shelf = Shelf()
        first = shelf.asks()
        await shelf.begun(1)
        second = shelf.asks()
        await asyncio.sleep(0.01)
        await gone(first)
        assert shelf.bucket.closed == 1
        await shelf.begun(2)
        shelf.let()
        await (await second).release()
        assert shelf.empty

    play(story)


def test_a_queued_listing_that_is_given_up_never_begins_and_is_joined_by_no_one():
    async def story():
        shelf = Shelf()
        first = shelf.asks()
        await shelf.begun(1)
        queued = shelf.asks()
        await asyncio.sleep(0.01)
        queued.cancel()
        await asyncio.sleep(0)
        late = shelf.asks()  # while the other one is being given up
        await asyncio.wait([queued])
        shelf.let()
        for one in (first, late):
            await (await one).release()
        assert shelf.bucket.listings == 2 and shelf.empty

    play(story)


def test_who_is_cancelled_in_the_moment_in_which_it_is_listed_leaves_nothing_open():
    async def story():
        shelf = Shelf()
        only = shelf.asks()
        await shelf.begun(1)
        run = next(one for one in asyncio.all_tasks() if one.get_name() == "dataset listing")
        run.add_done_callback(lambda _: only.cancel())
        shelf.let()
        await asyncio.wait([only])
        if not only.cancelled():
            await only.result().release()
        assert shelf.empty

    play(story)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "other", "cancel", "change", "fail", "pass"]), st.integers(0, 9)
    ),
    max_size=30,
)


def check(one, key, files):
    if one.exception() is not None:
        assert str(one.exception()) == "fault"
        return
    found = one.result()
    assert found.source.key == key
    assert {entry.path.decode() for entry in found.listing.entries} >= files


@given(STEPS, st.sampled_from([0.0, 60.0]))
def test_whatever_happens_in_between(steps, young):
    """Each gets a listing with what was there when it asked and with its own credentials, or the failure; no leaks."""

    async def story():
        shelf = Shelf(young)
        gate, bucket = shelf.bucket.list_hold, shelf.bucket
        asking, versions = [], itertools.count(1)
        for what, number in steps:
            if what in ("ask", "other"):
                key = "k2" if what == "other" else "k1"
                asking.append((shelf.asks(key), key, set(bucket.files)))
            elif what == "cancel" and asking:
                asking[number % len(asking)][0].cancel()
            elif what == "change":
                bucket.files[f"f{next(versions)}"] = b"x"
            elif what == "fail":
                bucket.fails.append(SourceError("fault"))
            elif what == "pass":
                gate.set()
                for _ in range(number):
                    await asyncio.sleep(0)
                gate.clear()
            for _ in range(number % 3):
                await asyncio.sleep(0)
        gate.set()
        for one, key, files in asking:
            await asyncio.wait([one])
            if not one.cancelled():
                check(one, key, files)
        assert bucket.listings <= len(asking)
        for one, _, _ in asking:
            if not one.cancelled() and one.exception() is None:
                await one.result().release()
        await until(
            lambda: shelf.empty
        )  # a task that is cancelled twice does not wait for the end of its listing

    play(story)


def test_a_listing_lasts_as_long_as_the_fetch_that_shares_it():
    async def story():
        shelf = Shelf()
        shelf.let()
        async with contextlib.AsyncExitStack() as fetch:
            async with shelf.listings.listed(COCO, KEY) as listed:
                source = await fetch.enter_async_context(listed.shared())
                assert source is listed.source
            assert not shelf.bucket.closed, "who asked for it is done, and the fetch is not"
        assert shelf.empty

    play(story)


@pytest.mark.parametrize("shared", [False, True])
def test_a_block_that_fails_gives_its_listing_back(shared):
    async def story():
        shelf = Shelf()
        shelf.let()
        with pytest.raises(LookupError):
            async with shelf.listings.listed(COCO, KEY) as listed:
                if shared:
                    async with listed.shared():
                        raise LookupError
                raise LookupError
        assert shelf.empty

    play(story)


def test_a_listing_that_is_closed_is_shared_no_more():
    async def story():
        shelf = Shelf()
        shelf.let()
        async with shelf.listings.listed(COCO, KEY) as listed:
            pass
        with pytest.raises(SourceError) as caught:
            async with listed.shared():
                raise AssertionError("its source is closed")
        assert not caught.value.changed, "another pod that waits for the fetch begins it with its own source"
        assert shelf.empty

    play(story)
