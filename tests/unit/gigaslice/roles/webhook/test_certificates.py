# SPDX-License-Identifier: Apache-2.0
"""The webhook's certificates: what they are good for, when they are renewed, and who may distrust whom meanwhile."""

from __future__ import annotations

import asyncio
import base64
import copy
import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.x509 import verification

from gigaslice.kubeapi.client import ApiFailure
from gigaslice.roles.webhook import certificates
from gigaslice.roles.webhook.rotation import WebhookCertificates

HOST = "gigaslice-webhook.gigaslice.svc"
NOW = datetime.datetime(2026, 11, 23, tzinfo=datetime.timezone.utc)
DAY = datetime.timedelta(days=1)


def trusts(authorities, certificate, host, at) -> bool:
    """Whether a client with these authorities connects to that host."""
    verifier = (
        verification.PolicyBuilder()
        .store(verification.Store(list(authorities)))
        .time(at)
        .build_server_verifier(x509.DNSName(host))
    )
    try:
        verifier.verify(certificate, [])
    except verification.VerificationError:
        return False
    return True


def test_a_client_that_trusts_the_bundle_trusts_what_is_served():
    found = certificates.issue_certificates(HOST, NOW)
    assert trusts(found.authorities, found.serving, HOST, NOW)
    assert not trusts(found.authorities, found.serving, "other.gigaslice.svc", NOW)
    assert not trusts(certificates.issue_certificates(HOST, NOW).authorities, found.serving, HOST, NOW)


def test_a_clock_that_is_behind_is_no_reason_to_distrust():
    found = certificates.issue_certificates(HOST, NOW)
    assert trusts(found.authorities, found.serving, HOST, NOW - 23 * datetime.timedelta(hours=1))


def test_what_was_written_is_read_back():
    found = certificates.issue_certificates(HOST, NOW)
    again = certificates.read_certificates(found.encode(), NOW)
    assert again.encode() == found.encode() and not certificates.renewal_reason(again, HOST, NOW)


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbled", "of another"])
def test_a_damaged_secret_is_noticed(key, damage):
    data, other = (
        certificates.issue_certificates(HOST, NOW).encode(),
        certificates.issue_certificates(HOST, NOW).encode(),
    )
    if damage == "missing":
        del data[key]
    else:
        data[key] = {
            "empty": b"",
            "garbled": data[key][:80] + b"*" + data[key][80:],
            "of another": other[key],
        }[damage]
    with pytest.raises(certificates.CertificateError):
        certificates.read_certificates(data, NOW)


def test_a_certificate_that_has_ended_does_not_serve():
    data = certificates.issue_certificates(HOST, NOW).encode()
    with pytest.raises(certificates.CertificateError, match="ended"):
        certificates.read_certificates(data, NOW + certificates.SERVING_LIFE)


def test_over_thirty_years_every_certificate_is_trusted_by_everyone_who_read_the_bundle_a_minute_ago():
    """A pass a day. The bundle that the API server has is that of the day before, the certificate today's or older."""
    found = certificates.issue_certificates(HOST, NOW)
    before, authorities, served = found, set(), set()
    for day in range(0, 30 * 365, 3):
        now = NOW + day * DAY
        if certificates.renewal_reason(found, HOST, now):
            found = certificates.renew_certificates(
                certificates.read_certificates(found.encode(), now), HOST, now
            )
        authorities.add(found.authorities[0].serial_number)
        if found is not before or day % 30 == 0:
            assert trusts(found.authorities, found.serving, HOST, now)
            assert trusts(before.authorities, found.serving, HOST, now), "the API server is a pass behind"
            assert trusts(found.authorities, before.serving, HOST, now), "another replica is a pass behind"
            assert found.serving.not_valid_after_utc - now > 30 * DAY, "renewed long before the end"
        served.add(found.serving.serial_number)
        before = found
    assert 3 < len(authorities) < 8 and 60 < len(served) < 120


def test_a_certificate_for_another_service_is_replaced():
    found = certificates.issue_certificates(HOST, NOW)
    assert certificates.renewal_reason(found, "new.gigaslice.svc", NOW)
    assert trusts(
        found.authorities,
        certificates.renew_certificates(found, "new.gigaslice.svc", NOW).serving,
        "new.gigaslice.svc",
        NOW,
    )


def test_a_certificate_of_the_future_is_replaced():
    found = certificates.issue_certificates(HOST, NOW + 30 * DAY)
    assert certificates.renewal_reason(found, HOST, NOW)


# --- kept in a Secret -------------------------------------------------------------------------------------------------

SECRET = "/api/v1/namespaces/gigaslice/secrets/gigaslice-webhook"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gigaslice"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/gigaslice"


class Objects:
    """Some objects with resourceVersions; `hook` is called before each PUT."""

    def __init__(self, *missing: str) -> None:
        def hook():
            return {"name": "pods.gigaslice.io", "clientConfig": {"service": {"name": "x", "path": "/m"}}}

        self.objects = {
            SECRET: {"metadata": {"name": "gigaslice-webhook"}, "type": "Opaque"},
            MUTATING: {"metadata": {}, "webhooks": [hook()]},
            VALIDATING: {"metadata": {}, "webhooks": [hook(), hook()]},
        }
        for path in missing:
            del self.objects[path]
        for one in self.objects.values():
            one["metadata"]["resourceVersion"] = "1"
        self.writes: list[str] = []
        self.hook = lambda path: None

    async def get(self, path, query=None):
        await asyncio.sleep(0)
        if path not in self.objects:
            raise ApiFailure("not found", 404)
        return copy.deepcopy(self.objects[path])

    async def put(self, path, body):
        await asyncio.sleep(0)
        self.hook(path)
        version = self.objects[path]["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise ApiFailure("conflict", 409)
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(int(version) + 1)
        self.objects[path] = body
        self.writes.append(path)
        return body

    def trusted(self, path: str) -> set[str]:
        return {hook["clientConfig"].get("caBundle", "") for hook in self.objects[path]["webhooks"]}

    def bundle(self) -> str:
        return self.objects[SECRET]["data"]["ca.crt"]


def replica(api: Objects, clock=lambda: NOW) -> WebhookCertificates:
    return WebhookCertificates(
        api,
        namespace="gigaslice",
        secret="gigaslice-webhook",
        service="gigaslice-webhook",
        configuration="gigaslice",
        clock=clock,
    )


def test_certificates_are_made_and_trusted_once():
    api = Objects()
    one = replica(api)
    asyncio.run(one.once())
    assert api.writes == [SECRET, MUTATING, VALIDATING]
    assert api.trusted(MUTATING) == api.trusted(VALIDATING) == {api.bundle()}
    assert api.objects[MUTATING]["webhooks"][0]["clientConfig"]["service"]["path"] == "/m", "nothing else"
    asyncio.run(one.once())
    asyncio.run(replica(api).once())
    assert len(api.writes) == 3, "nothing is written where nothing is due"


def test_a_configuration_that_is_not_installed_is_passed_over():
    api = Objects(MUTATING)
    asyncio.run(replica(api).once())
    assert api.writes == [SECRET, VALIDATING]


def test_replicas_that_start_at_once_agree_on_one_set():
    async def race(api):
        await asyncio.gather(*(replica(api).once() for _ in range(5)))

    api = Objects()
    asyncio.run(race(api))
    assert api.writes.count(SECRET) == 1, "the others took what was there"
    assert api.trusted(MUTATING) == api.trusted(VALIDATING) == {api.bundle()}


@pytest.mark.parametrize("path", [SECRET, VALIDATING])
def test_a_server_that_always_says_conflict_is_left_to_a_later_pass(path):
    api, attempts = Objects(), []

    def refuse(written):
        attempts.append(written)
        if written == path:
            raise ApiFailure("conflict", 409)

    api.hook = refuse
    with pytest.raises(ApiFailure):
        asyncio.run(replica(api).once())
    assert attempts.count(path) == 2
    api.hook = lambda path: None
    asyncio.run(replica(api).once())
    assert api.trusted(VALIDATING) == {api.bundle()}


def test_trust_that_an_upgrade_took_away_is_given_again():
    api = Objects()
    one = replica(api)
    asyncio.run(one.once())
    for hook in api.objects[VALIDATING]["webhooks"]:
        del hook["clientConfig"]["caBundle"]
    asyncio.run(one.once())
    assert api.trusted(VALIDATING) == {api.bundle()} and api.writes.count(SECRET) == 1


def test_a_garbled_secret_is_replaced_and_its_authority_stays_trusted():
    api = Objects()
    asyncio.run(replica(api).once())
    old = base64.b64decode(api.bundle())
    api.objects[SECRET]["data"]["tls.key"] = "!!!"
    asyncio.run(replica(api).once())
    new = base64.b64decode(api.bundle())
    assert old in new and new != old
    assert api.trusted(MUTATING) == {api.bundle()}


def test_nothing_is_served_before_the_api_server_trusts_it():
    api = Objects()
    one = replica(api)

    def refuse(path):
        if path == VALIDATING:
            raise ApiFailure("the server is gone", 0)

    api.hook = refuse
    with pytest.raises(ApiFailure):
        asyncio.run(one.once())
    assert not one._served
    api.hook = lambda path: None
    asyncio.run(one.once())
    assert one._served


def test_a_renewed_certificate_is_served_to_later_connections_without_a_restart():
    time = [NOW]

    async def served(port: int) -> int:
        client = ssl.create_default_context()
        client.check_hostname, client.verify_mode = (
            False,
            ssl.CERT_NONE,
        )  # the times here are not this machine's
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        certificate = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.close()
        return x509.load_der_x509_certificate(certificate).serial_number

    def stored(api: Objects) -> int:
        pem = base64.b64decode(api.objects[SECRET]["data"]["tls.crt"])
        return x509.load_pem_x509_certificate(pem).serial_number

    async def scenario():
        api = Objects()
        one = replica(api, lambda: time[0])
        await one.once()
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=one.context)
        port = server.sockets[0].getsockname()[1]
        async with server:
            first = stored(api)
            assert await served(port) == first
            time[0] = NOW + certificates.SERVING_LIFE * 0.7
            await one.once()
            assert stored(api) != first and await served(port) == stored(api)

    asyncio.run(scenario())
