# SPDX-License-Identifier: Apache-2.0
"""The credentials of the user who packs: a directory with a file for each key, or the environment.

A directory is what Kubernetes makes of a Secret that is mounted; its keys have the names that they have in the Secret
of a volume. The environment is that of the stores' own tools. Neither is ever an argument: every user of a machine can
read those of all processes. Files of profiles, and what a cloud's metadata service or a login would give, are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gigaslice.core.dataset.errors import RequestError
from gigaslice.core.dataset.source_spec import SourceSpec
from gigaslice.roles.dataset_node.sources.credentials import Credentials
from gigaslice.runtime.files import os_errors_as, read_file, remedy

__all__ = ["credentials_in", "credentials_of_environment"]

_MOST_BYTES = 1 << 20
_VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "access_key": ("AWS_ACCESS_KEY_ID",),
        "secret_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    },
    "az": {
        "account": ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"),
        "account_key": ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
        "sas_token": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
        "tenant_id": ("AZURE_TENANT_ID",),
        "client_id": ("AZURE_CLIENT_ID",),
        "client_secret": ("AZURE_CLIENT_SECRET",),
    },
}
"""The keys that are taken from the environment, by the kind of source; of several variables the first that is set."""
_FILES: dict[str, dict[str, str]] = {
    "s3": {"ca": "AWS_CA_BUNDLE"},
    "gs": {"service_account": "GOOGLE_APPLICATION_CREDENTIALS"},
    "rclone": {"rclone.conf": "RCLONE_CONFIG"},
}
"""Variables that name a file which has the value."""


def credentials_in(directory: Path) -> Credentials:
    """The keys that are files of DIRECTORY. Names that begin with a dot are passed over: Kubernetes has its own there.

    Raises:
        RequestError: It cannot be read, or is no directory of credentials.
    """
    try:
        names = sorted(
            path for path in directory.iterdir() if not path.name.startswith(".") and path.is_file()
        )
        values = {path.name: _text(path) for path in names}
    except OSError as error:
        raise RequestError(
            f"credentials: {error.filename or directory} cannot be read: {error.strerror}; {remedy(error)}"
        ) from None
    if not values:
        raise RequestError(
            f"credentials: {directory} has no files; write a file for each key, as access_key and secret_key"
        )
    return Credentials(values, str(directory))


def credentials_of_environment(spec: SourceSpec, environment: Mapping[str, str]) -> Credentials:
    """What ENVIRONMENT has for SPEC; what an option of SPEC names as well is left out.

    Raises:
        RequestError: A file that a variable names cannot be read.
    """
    values: dict[str, str] = {}
    for key, variables in _VARIABLES.get(spec.kind, {}).items():
        value = next((environment[variable] for variable in variables if environment.get(variable)), "")
        if value and not spec.option(key):
            values[key] = value
    for key, variable in _FILES.get(spec.kind, {}).items():
        if path := environment.get(variable, ""):
            with os_errors_as(RequestError, f"{variable}: {path} cannot be read"):
                values[key] = _text(Path(path))
    if spec.kind == "rclone":
        values |= {name: value for name, value in environment.items() if name.startswith("RCLONE_CONFIG_")}
    return Credentials(values, "the environment" if values else "--credentials, or the environment")


def _text(path: Path) -> str:
    data = read_file(path, _MOST_BYTES + 1)
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise RequestError(f"credentials: {path} is no text; write the key's value into it") from None
