# SPDX-License-Identifier: Apache-2.0
import threading

import pytest

from gigaslice.runtime.session import Session, SessionBusyError


@pytest.fixture
def did():
    return []


@pytest.fixture
def session(did):
    return Session(lambda: did.append("open"), lambda: did.append("close"), patience=0.01)


def test_it_is_open_once_it_was_opened(session, did):
    with session.use() as ready:
        assert not ready
    session.open()
    session.open()
    with session.use() as ready:
        assert ready
    session.close()
    session.close()
    with session.use() as ready:
        assert not ready
    assert did == ["open", "close"]


def test_nobody_uses_it_while_it_is_opened_anew(session, did):
    seen = []

    def opened():
        with session.use() as ready:
            seen.append(ready)

    session.open()
    session._opened = opened
    session.renew()
    assert seen == [False] and did == ["open", "close"]


def test_a_use_that_does_not_end_is_not_disturbed(session, did):
    session.open()
    with session.use():
        for change in (session.renew, session.close):
            with pytest.raises(SessionBusyError):
                change()
        with session.use() as ready:
            assert ready, "who waited in vain leaves no trace"
    session.renew()
    assert did == ["open", "close", "open"]


def test_a_use_that_ends_in_time_is_waited_for(session, did):
    session._patience = 60
    session.open()
    begun, end = threading.Event(), threading.Event()

    def user():
        with session.use():
            begun.set()
            end.wait(60)
            did.append("used")

    thread = threading.Thread(target=user)
    thread.start()
    begun.wait(60)
    threading.Timer(0.05, end.set).start()
    session.renew()
    thread.join()
    assert did == ["open", "used", "close", "open"]


def test_what_cannot_be_opened_is_closed(session, did):
    def fails():
        raise ValueError("why")

    session.open()
    session._opened = fails
    with pytest.raises(ValueError, match="why"):
        session.renew()
    with session.use() as ready:
        assert not ready
    session._opened = lambda: did.append("open")
    session.open()
    assert did == ["open", "close", "open"]
