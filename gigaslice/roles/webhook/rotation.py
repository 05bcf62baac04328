# SPDX-License-Identifier: Apache-2.0
"""Keeps the webhook's certificates: in a Secret, in the webhook configurations' caBundle, and in the serving context.

Every replica does the same. The Secret's resourceVersion decides which of several is first, and the others take what
is there. The order is always Secret, caBundle, serving: nothing is served that the API server was not told to trust. A
Secret that cannot be used is replaced, with a line in the log.

The chart creates the Secret, empty: the right to create secrets would be the right to make tokens of every account in
the namespace.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gigaslice.kubeapi.client import CONFLICT, NOT_FOUND, ApiFailure, KubeClient, object_path
from gigaslice.roles.webhook.certificates import (
    CertificateError,
    Certificates,
    issue_certificates,
    read_certificates,
    readable_authorities,
    renew_certificates,
    renewal_reason,
)
from gigaslice.runtime.log_once import LogOnce
from gigaslice.runtime.logs import get_logger

__all__ = ["WebhookCertificates"]

T = TypeVar("T")

_PERIOD = 30.0
_RETRY = 2.0
_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_ADMISSION = ("apis", "admissionregistration.k8s.io", "v1")


class WebhookCertificates:
    """The certificates of one webhook, of which every replica has an object of its own.

    Args:
        api: The API server.
        namespace: Of the Secret and of the Service.
        secret: The Secret's name.
        service: The Service by which the API server reaches the webhook.
        configuration: The name of both webhook configurations, of which one may be missing.
        clock: The time of day, in UTC.
    """

    def __init__(
        self,
        api: KubeClient,
        *,
        namespace: str,
        secret: str,
        service: str,
        configuration: str,
        clock: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.timezone.utc),
    ) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """What to serve with; later connections get a renewed certificate without a restart."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._api = api
        self._host = f"{service}.{namespace}.svc"
        self._secret = object_path("api", "v1", "namespaces", namespace, "secrets", secret)
        self._configurations = [object_path(*_ADMISSION, kind, configuration) for kind in _CONFIGURATIONS]
        self._clock = clock
        self._served = b""
        self._log = get_logger("webhook")
        self._reported = LogOnce()

    async def prepare(self) -> None:
        """Waits until there is a certificate to serve with."""
        while not await self._pass():
            await asyncio.sleep(_RETRY)

    async def run(self) -> None:
        """Renews certificates and the configurations' trust in them, until it is cancelled."""
        while True:
            await asyncio.sleep(_PERIOD if await self._pass() else _RETRY)

    async def _pass(self) -> bool:
        """Makes one pass and logs what fails. Returns whether the pass was completed."""
        try:
            await self.once()
        except ApiFailure as error:
            if self._reported.new("api", str(error)):
                self._log.warning("webhook certificates not written; tried again", detail=str(error))
            return False
        self._reported.over("api")
        return True

    async def once(self) -> None:
        """Takes, makes or renews the certificates once.

        Raises:
            ApiFailure: The API server was not reached, or refused.
        """
        certificates = await _twice(self._stored)
        for path in self._configurations:
            await _twice(partial(self._trust, path, certificates.bundle))
        if certificates.chain != self._served:
            self._load(certificates.chain)
            self._served = certificates.chain
            self._log.info(
                "webhook certificate loaded",
                until=certificates.serving.not_valid_after_utc.isoformat(),
                host=self._host,
            )

    async def _stored(self) -> Certificates:
        """Returns the certificates of the Secret. What is due to be renewed is renewed and stored first."""
        secret = await self._api.get(self._secret)
        now = self._clock()
        data = _data(secret)
        try:
            certificates = read_certificates(data, now)
            reason = renewal_reason(certificates, self._host, now)
            if not reason:
                return certificates
            renewed = renew_certificates(certificates, self._host, now)
        except CertificateError as error:
            reason = str(error)
            renewed = issue_certificates(self._host, now, readable_authorities(data, now))
            if data:
                self._log.warning("webhook certificates unusable; replaced", detail=reason)
        encoded = {key: base64.b64encode(value).decode() for key, value in renewed.encode().items()}
        await self._api.put(self._secret, {**secret, "data": encoded})
        self._log.info("webhook certificates written", detail=reason)
        return renewed

    async def _trust(self, path: str, bundle: bytes) -> None:
        """Writes the authorities into a configuration, where they are not yet there."""
        wanted = base64.b64encode(bundle).decode()
        try:
            configuration = await self._api.get(path)
        except ApiFailure as error:
            if error.status == NOT_FOUND:
                return
            raise
        hooks: Sequence[dict[str, Any]] = configuration.get("webhooks") or []
        if all(hook.get("clientConfig", {}).get("caBundle") == wanted for hook in hooks):
            return
        for hook in hooks:
            hook.setdefault("clientConfig", {})["caBundle"] = wanted
        await self._api.put(path, configuration)

    def _load(self, chain: bytes) -> None:
        """Serves by a certificate and its key, which only a file can be loaded from: one without a name."""
        descriptor = os.memfd_create("webhook")
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(chain)
            self.context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)


async def _twice(write: Callable[[], Awaitable[T]]) -> T:
    """Reads and writes, and once more where another replica was first: what it wrote is as new.

    A server that answers so for ever has a later pass to do it.
    """
    try:
        return await write()
    except ApiFailure as error:
        if error.status != CONFLICT:
            raise
        return await write()


def _data(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the data of a Secret. A value that is no base64 reads as empty, which no certificate is."""
    decoded = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            decoded[str(key)] = base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            decoded[str(key)] = b""
    return decoded
