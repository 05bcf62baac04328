# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.front.lifecycle import QUIET_SECONDS, RULES, Action, Facts, decide

OLD, NEW = "old kubelet", "new kubelet"


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        # a start in each order
        (Facts(), Action.SERVE),
        (Facts(kubelet=NEW), Action.SERVE),
        (Facts(serving=True), Action.REST),
        (Facts(serving=True, kubelet=NEW), Action.REGISTER),
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, registering=True), Action.REST),
        # the kubelet may open the stream before its answer to Register has come
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, registering=True, streams=1), Action.REST),
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, streams=1, idle=100.0), Action.REST),
        # accepted, and the stream has not come yet; then it does not come at all
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, idle=0.1), Action.REST),
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, idle=QUIET_SECONDS), Action.REGISTER),
        # a new kubelet while the old one's stream is open: wait for its end, then be quick
        (Facts(serving=True, kubelet=NEW, registered_with=OLD, streams=1), Action.REST),
        (Facts(serving=True, kubelet=NEW, registered_with=OLD, idle=0.0), Action.REGISTER),
        # the kubelet's start wipes our socket
        (Facts(serving=False, kubelet=NEW, registered_with=OLD), Action.SERVE),
        # wiped while a stream is open: serve anew, do not register
        (Facts(serving=False, kubelet=NEW, registered_with=NEW, streams=1), Action.SERVE),
        # the kubelet's socket is gone: a client that has a stream keeps it, no other can be told
        (Facts(serving=True, kubelet=None, registered_with=OLD, streams=1, idle=9.0), Action.REST),
        (Facts(serving=True, kubelet=None, registered_with=OLD, idle=9.0), Action.REST),
        # refused: pauses that grow, but not for another kubelet
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, failures=1, idle=0.1), Action.REST),
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, failures=1, idle=0.2), Action.REGISTER),
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, failures=9, idle=1.9), Action.REST),
        (Facts(serving=True, kubelet=NEW, registered_with=NEW, failures=9, idle=2.0), Action.REGISTER),
        (Facts(serving=True, kubelet=NEW, registered_with=OLD, failures=9, idle=0.0), Action.REGISTER),
    ],
)
def test_cases(facts, action):
    assert decide(facts).action is action


sockets = st.none() | st.sampled_from([OLD, NEW])
any_facts = st.builds(
    Facts,
    serving=st.booleans(),
    kubelet=sockets,
    registered_with=sockets,
    registering=st.booleans(),
    failures=st.integers(0, 50),
    streams=st.integers(0, 3),
    idle=st.floats(0, 100),
)


@given(any_facts)
def test_registering_never_hurts(facts):
    if decide(facts).action is Action.REGISTER:
        assert facts.streams == 0, "a second registration ends the open stream"
        assert facts.serving, "the kubelet dials back during the call"
        assert not facts.registering
        assert facts.kubelet is not None


@given(any_facts)
def test_nothing_waits_for_ever(facts):
    """Where there is a kubelet and no stream, patience alone leads to a registration."""
    settled = Facts(
        serving=True,
        kubelet=facts.kubelet or NEW,
        registered_with=facts.registered_with,
        failures=facts.failures,
        idle=10.0,
    )
    assert decide(settled).action is Action.REGISTER


def test_every_rule_is_reached_and_the_last_holds_always():
    assert RULES[-1].test(Facts())
    assert len({rule.case for rule in RULES}) == len(RULES)
