# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 against grpc's own client and against nonsense; at any instant it can be handed over."""

import contextlib
import json
import socket
import tempfile
import threading
from fractions import Fraction
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.front import grpc as wire
from agent.front import hpack
from agent.front.hpack import Decoder, HpackError
from agent.front.http2 import MESSAGE_BYTES, PREFACE, Connection, Http2Error, MessageReceived


def test_the_code_of_the_standard():
    """RFC 7541: the code is complete, and its examples C.4.1, C.4.2 and C.6.1 are read as they say."""
    lengths = [int(word) for word in hpack._LENGTHS.split()]
    assert len(lengths) == 257 and sum(Fraction(1, 2**length) for length in lengths) == 1
    decoder = Decoder()
    first = decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff"))
    assert first[-1] == (b":authority", b"www.example.com")
    second = decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf"))
    assert second[3:] == [(b":authority", b"www.example.com"), (b"cache-control", b"no-cache")]
    (field,) = Decoder().decode(bytes.fromhex("6196d07abe941054d444a8200595040b8166e082a62d1bff"))
    assert field == (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT")


def test_a_table_forgets_what_does_not_fit():
    decoder = Decoder()
    for number in range(100):
        decoder.decode(b"\x40" + bytes((3,)) + b"key" + bytes((90,)) + bytes((65 + number % 20,)) * 90)
    assert sum(len(name) + len(value) + 32 for name, value in decoder.table) <= hpack.TABLE_BYTES
    assert len(decoder.table) == hpack.TABLE_BYTES // 125
    decoder.decode(b"\x20")  # the peer makes its table empty
    assert decoder.table == []


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300)), max_size=6))
def test_what_is_written_is_read(fields):
    assert Decoder().decode(hpack.encode(fields)) == fields


@given(st.binary(max_size=80))
def test_nonsense_for_fields_is_an_error_and_no_other(block):
    with contextlib.suppress(HpackError):
        Decoder().decode(block)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40)),
        max_size=8,
    )
)
def test_nonsense_for_frames_ends_the_connection_and_nothing_else(frames):
    connection = Connection()
    try:
        connection.receive(PREFACE)
        for kind, flags, stream, payload in frames:
            head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
            connection.receive(head + payload)
    except Http2Error:
        assert b"\x07" in connection.out, "the peer is told"


HEAD = PREFACE + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def fields_of(stream, flags, block=b"\x83"):
    return len(block).to_bytes(3, "big") + bytes((1, flags)) + stream.to_bytes(4, "big") + block


@pytest.mark.parametrize("again", [0x4, 0x5])
def test_fields_after_a_request_end_the_connection(again):
    """Each would be kept, and the request heard once more."""
    connection = Connection()
    assert len(connection.receive(HEAD + fields_of(1, 0x5))) == 1
    with pytest.raises(Http2Error, match="was ended"):
        connection.receive(fields_of(1, again))


def test_fields_in_the_midst_of_a_request_are_its_last_ones_or_none():
    connection = Connection()
    connection.receive(HEAD + fields_of(1, 0x4))
    (heard,) = connection.receive(fields_of(1, 0x5))
    assert heard.fields == [(b":method", b"POST")] * 2
    connection.receive(fields_of(3, 0x4))
    with pytest.raises(Http2Error, match="in the midst"):
        connection.receive(fields_of(3, 0x4))


def test_fields_of_an_answer_are_bounded():
    connection = Connection(client=True)
    connection.ask(b"", b"")
    with pytest.raises(Http2Error, match="too many fields"):
        for _ in range(3000):
            connection.receive(fields_of(1, 0x4))


@pytest.mark.parametrize(
    "text", [b"9" * 400 + b"H", b"123456789S", b"", b"5", b"S", b"1 S", b"-1S", b"1s", b"\xb2S"]
)
def test_a_timeout_that_is_none_is_refused(text):
    with pytest.raises(wire.StatusError, match="malformed"):
        wire.time_left([(b"grpc-timeout", text)])


def test_timeouts_are_read():
    assert wire.time_left([]) is None
    assert wire.time_left([(b"grpc-timeout", b"99999999H")]) == 99999999 * 3600.0
    assert wire.time_left([(b"grpc-timeout", b"250m")]) == 0.25


def test_somebody_else_is_sent_away():
    with pytest.raises(Http2Error, match="preface"):
        Connection().receive(b"GET / HTTP/1.1\r\n\r\n")


class Server(threading.Thread):
    """Answers each request with its own message, and Stream with three; another Connection for each STEP bytes."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(daemon=True)
        self.step = step
        self.moves = 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()

    def run(self) -> None:
        sock, _ = self.listener.accept()
        self.listener.close()
        connection = Connection()
        with sock, contextlib.suppress(ConnectionError):  # a client leaves when it has its answers
            while True:
                sock.sendall(connection.out)
                connection.out.clear()
                data = sock.recv(1 << 16)
                if not data:
                    return
                for at in range(0, len(data), self.step):
                    connection = Connection.restored(json.loads(json.dumps(connection.export())))
                    self.moves += 1
                    for event in connection.receive(data[at : at + self.step]):
                        if isinstance(event, MessageReceived):
                            self.answer(connection, event)

    @staticmethod
    def answer(connection: Connection, event: MessageReceived) -> None:
        try:
            service, method = wire.method(event.fields)
            if service != "v1beta1.DevicePlugin":
                raise wire.not_served()
            if event.large:
                raise wire.StatusError(wire.EXHAUSTED, "too large: 4 MiB, 100 %")
            message = wire.unpacked(event.body)
        except wire.StatusError as error:
            connection.answer(event.stream, wire.failed(error.code, str(error)), end=True)
            return
        connection.answer(event.stream, wire.opening())
        for _ in range(3 if method == "Stream" else 1):
            connection.data(event.stream, wire.packed(message))
        connection.end(event.stream, wire.done())


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_grpcs_client_does_not_notice_that_the_process_changes(step):
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        path = Path(name) / "s.sock"
        server = Server(path, step)
        server.start()
        with grpc.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary("/v1beta1.DevicePlugin/Echo")
            stream = channel.unary_stream("/v1beta1.DevicePlugin/Stream")
            for message in (b"", b"a", b"x" * 300, bytes(range(256)) * (1200 if step > 1000 else 4)):
                assert call(message, timeout=60) == message
                assert list(stream(message, timeout=60)) == [message] * 3
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/other.Service/Echo")(b"", timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        server.join(30)
        assert server.moves > 5


def test_a_request_that_is_too_large_is_refused_and_the_connection_goes_on():
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        path = Path(name) / "s.sock"
        server = Server(path, 1 << 20)
        server.start()
        with grpc.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary("/v1beta1.DevicePlugin/Echo")
            with pytest.raises(grpc.RpcError) as caught:
                call(bytes(5 << 20), timeout=60)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.details() == "too large: 4 MiB, 100 %"
            assert call(b"still there", timeout=60) == b"still there"
        server.join(30)


@pytest.mark.parametrize("more", [0, 1])
def test_the_largest_message_is_received_and_a_byte_more_is_not(more):
    connection, heard = Connection(), []
    connection.receive(HEAD + fields_of(1, 0x4))
    request = wire.packed(bytes(MESSAGE_BYTES + more))
    for begin in range(0, len(request), 16384):
        part = request[begin : begin + 16384]
        flags = begin + len(part) == len(request)
        heard += connection.receive(len(part).to_bytes(3, "big") + bytes((0, flags, 0, 0, 0, 1)) + part)
    assert [(message.large, len(message.body)) for message in heard] == [
        (bool(more), 0 if more else len(request))
    ]
