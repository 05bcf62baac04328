# SPDX-License-Identifier: Apache-2.0
"""Under which names the page answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gigaslice.role_settings import load
from gigaslice.roles.controller.config import ControllerConfig
from gigaslice.roles.controller.page_hosts import PageHosts, host_names
from gigaslice.roles.controller.web_page import page_routes

HOSTS = PageHosts("gpu", ("gpus.example.com",))


@pytest.mark.parametrize("host", [
    "localhost", "localhost:8080", "LocalHost.", "127.0.0.1", "127.0.0.1:8080", "10.1.2.3:80", "[::1]", "[::1]:8080",
    "[fd00::7]:80", "page.gpu.svc", "page.gpu.svc:80", "page.gpu.svc.cluster.local.", "GPUs.example.com:443",
])  # fmt: skip
def test_names_that_nobody_else_gives_to_the_page_are_answered(host):
    assert HOSTS.admits([host])


@pytest.mark.parametrize("host", [
    "", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1.nip.io",
    "xgpus.example.com", "gpus.example.com.evil.example", "a.gpus.example.com", "page.gpu.svc.evil.example",
    "page.other.svc", "page.gpu", "gpu.svc", "a.page.gpu.svc", "page.gpu.svc.cluster.local.evil.example",
    "[localhost]", "[127.0.0.1]", "[::1", "::1", "[::1].evil.example", "localhost:80:80", "localhost@evil.example",
    "evil.example#localhost", "localhost evil.example", "2130706433", "0x7f.1", "localhost..", "localhost:80\n",
    "localhost:8080.evil.example",
])  # fmt: skip
def test_all_others_are_not(host):
    expected = host.endswith("\n")  # white space around a value is none of it
    assert HOSTS.admits([host]) is expected


def test_a_request_has_one_host():
    assert not HOSTS.admits([]) and not HOSTS.admits(["localhost", "localhost"])


def test_a_dot_in_the_namespace_is_a_dot():
    assert not PageHosts("a.c").admits(["page.abc.svc"])


def test_hosts_are_a_setting():
    assert load(ControllerConfig, {}, {}).page_hosts == ()
    assert load(ControllerConfig, {"page-hosts": "GPUs.example.com., b"}, {}).page_hosts == (
        "gpus.example.com",
        "b",
    )
    assert load(ControllerConfig, {}, {"GIGASLICE_PAGE_HOSTS": "gpus"}).page_hosts == ("gpus",)
    for bad in (
        "https://gpus.example.com",
        "gpus.example.com:80",
        "*.example.com",
        "*",
        "a b",
        "a" * 64,
        "a..b",
        "-a",
    ):
        with pytest.raises(ValueError, match="no name of a host"):
            host_names(bad)


def test_the_page_is_told_to_nobody_who_came_by_another_name():
    made = []

    async def make(_: Mapping[str, str]) -> Callable[[], str]:
        made.append(1)
        return lambda: "secret"

    async def main() -> None:
        application = web.Application()
        application.add_routes(page_routes(make, lambda: 1, {"Content-Type": "text/html"}, HOSTS))
        async with TestClient(TestServer(application)) as client:
            for query in ("/", "/?q=a"):
                answer = await client.get(query, headers={"Host": "<b>evil.example</b>"})
                text = await answer.text()
                assert answer.status == 421 and "--page-hosts" in text and "secret" not in text
                assert answer.content_type == "text/plain", "what the request said is no markup"
            assert not made
            good = await client.get("/", headers={"Host": "gpus.example.com"})
            assert (good.status, await good.text()) == (200, "secret")
            tagged = {"Host": "evil.example", "If-None-Match": good.headers["ETag"]}
            assert (await client.get("/", headers=tagged)).status == 421, "nor that nothing has changed"

    asyncio.run(main())
