"""For how long a service without calls keeps its lease."""

from gigaslice.scheduler.election import Election


def test_a_lease_is_kept_between_two_attempts_of_a_pod_and_given_back_before_a_successor_comes():
    """kube-scheduler tries a failing pod every 10 s at least, and its own lease lasts 15 s.

    With 5 s, and an API server that takes seconds for each answer, the lease was given back before the takeover was
    complete, at every attempt: the last pod of a burst was never bound.
    """
    now = 0.0
    found = Election(
        None,  # type: ignore[arg-type]  (nothing is asked of the API server)
        ("ns", "lease"),
        "me",
        busy=lambda: False,
        clean=lambda: True,
        refresh=lambda: None,  # type: ignore[arg-type, return-value]
        unbound=tuple,
        put=lambda document: None,
        clock=lambda: now,
    )
    assert not found._wanted(), "nothing has called yet"
    found.decides()
    for now, wanted in ((0.0, True), (11.5, True), (13.0, False)):
        assert found._wanted() is wanted, now
