# SPDX-License-Identifier: Apache-2.0
"""The webhook's certificates: how they are issued, checked and renewed. `rotation` stores and serves them. No I/O.

A certification authority of our own signs the serving certificate, and the API server trusts it through the caBundle of
the webhook configurations. Both are renewed long before their end. A new authority is trusted a day before anything is
signed by it, and the old one stays trusted until it ends, so no replica is ever distrusted for being a minute behind.
Everything is valid from a day in the past: clocks of nodes differ.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gigaslice.core.errors import InputError

__all__ = [
    "CertificateError",
    "Certificates",
    "issue_certificates",
    "read_certificates",
    "readable_authorities",
    "renew_certificates",
    "renewal_reason",
]

AUTHORITY_LIFE = datetime.timedelta(days=3650)
SERVING_LIFE = datetime.timedelta(days=180)
SKEW = datetime.timedelta(days=1)
OVERLAP = datetime.timedelta(days=1)
_SPENT = 2 / 3  # of a life, after which it is renewed
_MOST_AUTHORITIES = 4

Key = ec.EllipticCurvePrivateKey
Time = datetime.datetime


class CertificateError(InputError):
    """What is stored is no set of certificates that can serve; the text says why."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """What is stored. authorities: the newest first, whose key is authority_key; serving: signed by any of them."""

    authorities: tuple[x509.Certificate, ...]
    authority_key: Key
    serving: x509.Certificate
    serving_key: Key

    @property
    def bundle(self) -> bytes:
        """What the API server is to trust, as PEM."""
        return b"".join(authority.public_bytes(serialization.Encoding.PEM) for authority in self.authorities)

    @property
    def chain(self) -> bytes:
        """The serving certificate and its key, as PEM in one text."""
        return self.serving.public_bytes(serialization.Encoding.PEM) + _pem(self.serving_key)

    def encode(self) -> dict[str, bytes]:
        """Returns the data of the Secret."""
        return {
            "ca.crt": self.bundle,
            "ca.key": _pem(self.authority_key),
            "tls.crt": self.serving.public_bytes(serialization.Encoding.PEM),
            "tls.key": _pem(self.serving_key),
        }


def issue_certificates(host: str, now: Time, trusted: tuple[x509.Certificate, ...] = ()) -> Certificates:
    """Returns certificates made anew for the host; the authorities in trusted stay trusted."""
    authority, key = _authority(now)
    serving, serving_key = _serving(host, now, authority, key)
    return Certificates(_living((authority, *trusted), now), key, serving, serving_key)


def renewal_reason(certificates: Certificates, host: str, now: Time) -> str:
    """Returns why the certificates are to be renewed now; empty where they are not."""
    newest = certificates.authorities[0]
    if _is_spent(newest, now):
        return "the authority is old"
    if _is_spent(certificates.serving, now):
        return "the serving certificate is old"
    if now < certificates.serving.not_valid_before_utc:
        return "the serving certificate is of the future"
    if not _is_for(certificates.serving, host):
        return "the serving certificate is for another host"
    if not _is_signed(certificates.serving, newest) and now >= newest.not_valid_before_utc + SKEW + OVERLAP:
        return "the serving certificate is of the authority before"
    return ""


def renew_certificates(certificates: Certificates, host: str, now: Time) -> Certificates:
    """Returns the certificates with what is due replaced.

    A new authority comes alone. The serving certificate that it signs follows a day later.
    """
    if _is_spent(certificates.authorities[0], now):
        authority, key = _authority(now)
        certificates = replace(
            certificates, authorities=_living((authority, *certificates.authorities), now), authority_key=key
        )
        alive = now < certificates.serving.not_valid_after_utc - OVERLAP and _is_for(
            certificates.serving, host
        )
        if alive and not now < certificates.serving.not_valid_before_utc:
            return certificates
    serving, serving_key = _serving(host, now, certificates.authorities[0], certificates.authority_key)
    return replace(
        certificates,
        authorities=_living(certificates.authorities, now),
        serving=serving,
        serving_key=serving_key,
    )


def read_certificates(data: Mapping[str, bytes], now: Time) -> Certificates:
    """Reads the data of the Secret.

    Raises:
        CertificateError: Something is missing, garbled, over, or does not belong together.
    """
    try:
        authorities = tuple(x509.load_pem_x509_certificates(data["ca.crt"]))
        certificates = Certificates(
            _living(authorities, now),
            _key(data["ca.key"]),
            x509.load_pem_x509_certificate(data["tls.crt"]),
            _key(data["tls.key"]),
        )
    except KeyError as error:
        raise CertificateError(f"{error.args[0]} is missing") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"a certificate or key cannot be read: {error}") from None
    if not certificates.authorities or certificates.authorities[0] != authorities[0]:
        raise CertificateError("the authority has ended")
    if certificates.authorities[0].public_key() != certificates.authority_key.public_key():
        raise CertificateError("ca.key is not the key of ca.crt")
    if certificates.serving.public_key() != certificates.serving_key.public_key():
        raise CertificateError("tls.key is not the key of tls.crt")
    if not any(_is_signed(certificates.serving, authority) for authority in certificates.authorities):
        raise CertificateError("tls.crt is signed by none of ca.crt")
    if now >= certificates.serving.not_valid_after_utc:
        raise CertificateError("tls.crt has ended")
    return certificates


def readable_authorities(data: Mapping[str, bytes], now: Time) -> tuple[x509.Certificate, ...]:
    """Returns the authorities of data that cannot be used as a whole: other replicas may still serve by them."""
    try:
        return _living(tuple(x509.load_pem_x509_certificates(data.get("ca.crt", b""))), now)
    except (ValueError, TypeError):
        return ()


def _authority(now: Time) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial number is part of the name: two authorities with one name cannot be told apart by all verifiers.
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gigaslice webhook {serial:x}"[:64])])
    built = (
        _builder(name, name, key, serial, (now - SKEW, now + AUTHORITY_LIFE))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return built.sign(key, hashes.SHA256()), key


def _serving(host: str, now: Time, authority: x509.Certificate, signer: Key) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    built = (
        _builder(
            name,
            authority.subject,
            key,
            x509.random_serial_number(),
            (now - SKEW, now + SERVING_LIFE),
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
    )
    return built.sign(signer, hashes.SHA256()), key


def _builder(
    name: x509.Name, issuer: x509.Name, key: Key, serial: int, valid: tuple[Time, Time]
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=serial,
        not_valid_before=valid[0],
        not_valid_after=valid[1],
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _living(authorities: tuple[x509.Certificate, ...], now: Time) -> tuple[x509.Certificate, ...]:
    living = [authority for authority in dict.fromkeys(authorities) if now < authority.not_valid_after_utc]
    return tuple(living[:_MOST_AUTHORITIES])


def _is_spent(certificate: x509.Certificate, now: Time) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return now >= certificate.not_valid_before_utc + life * _SPENT


def _is_for(certificate: x509.Certificate, host: str) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return host in names.get_values_for_type(x509.DNSName)


def _is_signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _key(pem: bytes) -> Key:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("a key of another kind")
    return key


def _pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
