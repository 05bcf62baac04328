# SPDX-License-Identifier: Apache-2.0
import base64
import ssl

import pytest
import yaml

from gigaslice.core.errors import ConfigError
from gigaslice.kubeapi.access import Access, find_access


def kubeconfig(tmp_path, server="https://10.0.0.1:6443/k8s/", cluster=None, user=None):
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": server, **(cluster or {})}}],
                "users": [{"name": "u", "user": user or {}}],
            }
        )
    )
    return path


def mistakes(path):
    with pytest.raises(ConfigError) as caught:
        find_access(path, "")
    return str(caught.value)


def test_a_kubeconfig_is_read_with_paths_relative_to_it(tmp_path):
    user = {"tokenFile": "token", "client-key-data": base64.b64encode(b"key").decode()}
    access, whence = find_access(
        kubeconfig(tmp_path, cluster={"certificate-authority": "ca.crt"}, user=user), ""
    )
    assert (access.host, access.port, access.prefix, access.tls) == ("10.0.0.1", 6443, "/k8s", True)
    assert (access.ca_file, access.token_file) == (tmp_path / "ca.crt", tmp_path / "token")
    assert access.key_data == b"key"
    assert str(tmp_path) in whence
    assert "key" not in repr(access).replace("key_file", "")


def test_a_token_is_read_anew_each_time(tmp_path):
    access = Access("h", 1, token_file=tmp_path / "token")
    for token in ("one", "two"):
        (tmp_path / "token").write_text(token + "\n")
        assert access.authorization() == f"Bearer {token}"
    assert Access("h", 1).authorization() is None


@pytest.mark.parametrize("server, text", [
    ("ftp://x", "must look like https://"), ("https://", "must look like"), ("https://h:x", "is no URL"),
    ("", "must look like"),
])  # fmt: skip
def test_a_server_that_is_none(tmp_path, server, text):
    assert text in mistakes(kubeconfig(tmp_path, server))


@pytest.mark.parametrize("user, text", [
    ({"exec": {"command": "aws"}}, "not supported; use a token"),
    ({"username": "u", "password": "p"}, "not supported"),
    ({"client-certificate-data": "!!"}, "not base64"),
])  # fmt: skip
def test_credentials_that_cannot_be_used_are_said_so(tmp_path, user, text):
    assert text in mistakes(kubeconfig(tmp_path, user=user))


@pytest.mark.parametrize(
    "content", ["", "[]", "contexts: 3", "current-context: c\ncontexts: []", "{", "\x00"]
)
def test_a_file_that_is_no_kubeconfig(tmp_path, content):
    path = tmp_path / "k"
    path.write_text(content)
    assert "--kubeconfig" in mistakes(path)
    assert "\n" not in mistakes(path)


def test_a_file_that_is_not_there(tmp_path):
    assert "name a readable" in mistakes(tmp_path / "none")


def test_in_a_pod_the_service_account_is_used(tmp_path):
    (tmp_path / "token").write_text("t")
    access, _ = find_access(None, "[fd00::1]:443", tmp_path)
    assert (access.host, access.port, str(access)) == ("fd00::1", 443, "https://[fd00::1]:443")
    assert access.authorization() == "Bearer t"


def test_no_access_is_a_sentence(tmp_path):
    assert find_access(None, "") == (None, "not in a cluster, and no --kubeconfig")
    absent = 'not in a cluster, and no --kubeconfig; none of the files of $KUBECONFIG "/a:/b" is there'
    assert find_access(None, "", variable="/a:/b") == (None, absent)
    access, why = find_access(None, "10.0.0.1:443", tmp_path)
    assert access is None and "automountServiceAccountToken" in why


def test_a_certificate_that_is_none_is_an_error_of_the_connection(tmp_path):
    (tmp_path / "ca.crt").write_text("nonsense")
    with pytest.raises(ssl.SSLError):
        Access("h", 1, ca_file=tmp_path / "ca.crt").ssl_context()


def test_an_insecure_server_is_not_checked():
    context = Access("h", 1, insecure=True).ssl_context()
    assert context.verify_mode is ssl.CERT_NONE
    assert Access("h", 1, tls=False).ssl_context() is None


@pytest.mark.parametrize("broken", ["", "\n", "two\nlines\n", "\u00e9"])
def test_a_file_without_a_token_is_as_one_that_cannot_be_read(tmp_path, broken):
    """It may just be written anew; a header could not be made of it, and no caller expects that."""
    (tmp_path / "token").write_text(broken)
    with pytest.raises(OSError, match="has no token in it"):
        Access("h", 1, token_file=tmp_path / "token").authorization()


# --- credentials go to the server and nowhere else --------------------------------------------------------------------

SECRET = "s3cr3tT0ken"


@pytest.mark.parametrize("token", [f"{SECRET}\n", f"  {SECRET}\r\n\n", SECRET])
def test_a_token_with_a_line_end_is_the_token(tmp_path, token):
    """`token: |` keeps the line's end."""
    access, _ = find_access(kubeconfig(tmp_path, user={"token": token}), "")
    assert access.authorization() == f"Bearer {SECRET}"


@pytest.mark.parametrize("token", [
    f"{SECRET}\nsecond", f"{SECRET}\x00", f"{SECRET}\u00e9", 83, True, [SECRET], {"a": SECRET}, "\n",
])  # fmt: skip
def test_a_token_that_no_header_can_carry_is_a_mistake_that_does_not_show_it(tmp_path, token):
    text = mistakes(kubeconfig(tmp_path, user={"token": token}))
    assert "token" in text and "\n" not in text
    assert SECRET not in text and "83" not in text.replace(str(tmp_path), "")


@pytest.mark.parametrize("server", [
    f"https://admin:{SECRET}@10.0.0.1:6443", f"https://{SECRET}@10.0.0.1", f"ftp://admin:{SECRET}@h",
    f"https://h:6443/?token={SECRET}", f"https://h:6443/#{SECRET}", f"https://admin:{SECRET}@h:notaport",
    f"https://admin:{SECRET}@", f"admin:{SECRET}@h", f"https://[::1/{SECRET}@h", f"https://h/a b?{SECRET}",
])  # fmt: skip
def test_a_password_in_the_address_is_refused_and_not_shown(tmp_path, server):
    text = mistakes(kubeconfig(tmp_path, server))
    assert "server" in text and SECRET not in text


@pytest.mark.parametrize(
    "server", ["https://h/a b", "https://h/\u00e9", "https://h\u00e9/", "https://h/\x7f", "https://a b/"]
)
def test_an_address_that_no_request_can_carry_is_a_mistake(tmp_path, server):
    assert "server" in mistakes(kubeconfig(tmp_path, server))


@pytest.mark.parametrize("user", [
    {"token": SECRET, "as": "another"}, {"token": SECRET, "as-groups": ["g"]}, {"token": SECRET, "as-uid": "1"},
    {"token": SECRET, "as-user-extra": {"a": ["b"]}}, {"username": "u", "password": SECRET},
    {"token": 1, "password": SECRET}, {"tokenFile": ["a"], "token": SECRET}, {"client-certificate": 3, "token": SECRET},
    {"exec": {"command": "aws", "env": [{"name": "KEY", "value": SECRET}]}}, {"auth-provider": {"config": SECRET}},
    {"client-key-data": SECRET + "!"}, {"client-key-data": "\u00e9" + SECRET},
])  # fmt: skip
def test_what_is_not_supported_is_refused_and_not_left_out(tmp_path, user):
    """To act as oneself where another was named is to have more rights than were meant."""
    assert SECRET not in mistakes(kubeconfig(tmp_path, user=user))


@pytest.mark.parametrize("cluster", [
    {"proxy-url": f"http://admin:{SECRET}@proxy"}, {"tls-server-name": 3}, {"insecure-skip-tls-verify": "true"},
    {"certificate-authority": []}, {"server": 3},
])  # fmt: skip
def test_a_cluster_with_what_is_not_supported_is_refused(tmp_path, cluster):
    assert SECRET not in mistakes(kubeconfig(tmp_path, cluster=cluster))


@pytest.mark.parametrize("line", [
    f"token: {SECRET}: x", f"token: *{SECRET}", f"token: !{SECRET} x", f"token: '{SECRET}", f"token: {SECRET}\n - a",
    f"token: {SECRET}\n\tx: y", f"{{ {SECRET}", f"token: \"\\x{SECRET}\"", f"&{SECRET} a: *{SECRET}x",
    f"%{SECRET}\n---\na", f"token: @{SECRET}", f"? [{SECRET}]\n: x", f"- {SECRET}\n- [",
])  # fmt: skip
def test_a_kubeconfig_that_is_no_yaml_is_not_printed(tmp_path, line):
    path = tmp_path / "k"
    path.write_text(line + "\n")
    text = mistakes(path)
    assert SECRET not in text and str(path) in text


LOCKED_KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHjME4GCSqGSIb3DQEFDTBBMCkGCSqGSIb3DQEFDDAcBAgbsgitoTjhGgICCAAw
DAYIKoZIhvcNAgkFADAUBggqhkiG9w0DBwQIfOipLWncBEoEgZCXVdAniWXoeiRB
WA8T7KzCgqiV1T/hlEOtLFY5oLabidR3Q7zo62+gYv0+8Jw1md+VMzXqNOu+q8/Z
PIEyzaLHI7rTbqA4jotU9cr0aP9WpfetaSo60dG/PUGUjfTxbXKYj0VpjcDK6sIc
oJMVkuAVRQJ7UcamtP2k/78zVLBdkhUNNpPHU9Yjx/zc+FFd8lQ=
-----END ENCRYPTED PRIVATE KEY-----
"""
"""Of a certificate that no client trusts; its passphrase is SECRET."""
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIUDIEnqi0FPE+yBGDR2I4BBDzDutUwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBeDAgFw0yNjExMjIxODQ1MjhaGA8yMTI2MTAyOTE4NDUyOFow
DDEKMAgGA1UEAwwBeDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNYoCTCxVIIE
2m3bizb0FxbkYEOUBluioL0FDnmIEN/vkuPNqqU7IhgaG+cIi0wVvmDJO2SyW7c9
rq1ffBHG4ZGjUzBRMB0GA1UdDgQWBBRngpUNLBT82wr9g7R63WQVzomHezAfBgNV
HSMEGDAWgBRngpUNLBT82wr9g7R63WQVzomHezAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0gAMEUCIHGAIBUFdNf5Fx89sBul3I+FSDYxJ6wFvLfk7pZVkKmr
AiEA/zO3eSJUezB0Bmd/nWJIvarfXp0u3plSCgq9B5m635Q=
-----END CERTIFICATE-----
"""


def test_a_key_with_a_passphrase_is_said_so_and_nobody_is_asked_for_it(tmp_path):
    """OpenSSL would ask on the terminal, and wait."""
    (tmp_path / "key").write_text(LOCKED_KEY)
    (tmp_path / "cert").write_text(CERTIFICATE)
    with pytest.raises(OSError, match="passphrase"):
        Access("h", 1, cert_file=tmp_path / "cert", key_file=tmp_path / "key").ssl_context()
