# SPDX-License-Identifier: Apache-2.0
"""The Secret of a volume, under the names that people give its keys.

There is no standard for a Secret with object-store credentials. So the usual names are one: `access_key`,
`accessKeyID`, `AWS_ACCESS_KEY_ID`, `access-key-id`. Values never leave this object but to the one library that
needs them: its own text shows which keys there are, and nothing of what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gigaslice.core.dataset.errors import RequestError

__all__ = ["Credentials"]

_NAMES: dict[str, tuple[str, ...]] = {
    "access_key": ("accesskey", "accesskeyid", "awsaccesskeyid", "username", "user", "keyid", "rootuser"),
    "secret_key": ("secretkey", "secretaccesskey", "awssecretaccesskey", "secretkeyid", "rootpassword"),
    "session_token": ("sessiontoken", "awssessiontoken", "awssecuritytoken"),
    "endpoint": ("endpoint", "endpointurl", "awsendpointurl", "awsendpointurls3", "awsendpoint", "s3endpoint", "host"),
    "region": ("region", "awsregion", "awsdefaultregion"),
    "ca": ("cacrt", "ca", "awscabundle", "cacert"),
    "service_account": ("serviceaccount", "serviceaccountjson", "keyjson", "credentialsjson",
                        "googleapplicationcredentials", "serviceaccountkey", "gcscredentials"),
    "account": ("account", "accountname", "azurestorageaccount", "azurestorageaccountname", "storageaccount"),
    "account_key": ("accountkey", "azurestoragekey", "azurestorageaccountkey", "azurestorageaccesskey",
                    "azureaccountkey"),
    "sas_token": ("sastoken", "azurestoragesastoken", "azurestoragesaskey", "saskey"),
    "tenant_id": ("tenantid", "azuretenantid"),
    "client_id": ("clientid", "azureclientid"),
    "client_secret": ("clientsecret", "azureclientsecret"),
    "user": ("username", "user"),
    "password": ("password", "pass"),
    "token": ("token", "bearertoken", "bearer"),
    "authorization": ("authorization",),
    "ceph_secret": ("secret", "key", "userkey", "adminkey"),
    "ceph_user": ("userid", "adminid", "user", "username"),
}  # fmt: skip
_MOST_BYTES = 1 << 20


class Credentials:
    """A Secret's keys and values; its text shows no value.

    Args:
        raw: The keys and values.
        where: How the place that they are from is called in texts.
    """

    __slots__ = ("_by_name", "_raw", "where")

    def __init__(self, raw: Mapping[str, str], where: str = "the volume's Secret") -> None:
        self.where = where
        if sum(len(key) + len(value) for key, value in raw.items()) > _MOST_BYTES:
            raise RequestError(f"{where} is larger than 1 MiB; it must have nothing but credentials")
        self._raw = dict(raw)
        self._by_name: dict[str, str] = {}
        for key, value in raw.items():
            name = re.sub(r"[^a-z0-9]", "", key.lower())
            if self._by_name.setdefault(name, value) != value:
                raise RequestError(f"{where} has {key!r} twice, written differently; keep one of them")

    def get(self, name: str) -> str:
        """The value for NAME, under any of its usual keys; empty where there is none."""
        for alias in _NAMES[name]:
            value = self._by_name.get(alias, "")
            if value:
                return value if name in ("service_account", "ca") else value.strip()
        return ""

    def exact(self) -> Iterator[tuple[str, str]]:
        """Every key as it was written, with its value."""
        return iter(self._raw.items())

    def __bool__(self) -> bool:
        return bool(self._raw)

    def __repr__(self) -> str:
        return f"Credentials({', '.join(sorted(self._raw))})"

    def __reduce__(self) -> str:
        raise TypeError("credentials are not written down")
