# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 (RFC 9113) as gRPC uses it between two processes of one machine, without any I/O: bytes in, events out.

Both sides of it: the kubelet calls us, and we call it once to register. A request or an answer is one event, when it is
complete: no message of the device plugin API is larger than 4 MiB, and only answers are streams. What a `Connection`
knows can be put into a dictionary and made into a `Connection` again in another process: so a stream outlives an
upgrade. Not there, since neither side uses it: pushes, priorities, upgrades from HTTP/1.
"""

from __future__ import annotations

import binascii
import struct
from typing import Any, NamedTuple

from agent.front.hpack import Decoder, HpackError

__all__ = ["MESSAGE_BYTES", "Connection", "GoAwayReceived", "Http2Error", "MessageReceived", "StreamReset"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MESSAGE_BYTES = 4 << 20  # grpc's own limit, and the kubelet's
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PUSH = 0, 1, 3, 4, 5
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_MOST_STREAMS = 100
_BUFFER_BYTES = 2 * MESSAGE_BYTES + 1024  # of unfinished messages on one connection
_WINDOW, _OUR_WINDOW, _MOST_WINDOW = 65_535, MESSAGE_BYTES + 1024, (1 << 31) - 1
_FRAME_BYTES = 16_384
_HEADER_BYTES = 64 << 10
_CLOSED, _REFUSED, _ENOUGH = 0x5, 0x7, 0xB
_HEAD = struct.Struct("!BHBBI")
_SETTING = struct.Struct("!HI")

Fields = list[tuple[bytes, bytes]]


class Http2Error(Exception):
    """What a peer sent is not HTTP/2, or goes beyond what is served; the connection must end. code: RFC 9113's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class MessageReceived(NamedTuple):
    """A complete request, or a complete answer. large: the message was too large and is left out."""

    stream: int
    fields: Fields
    body: bytes
    large: bool = False


class StreamReset(NamedTuple):
    """The peer gave up a stream."""

    stream: int


class GoAwayReceived(NamedTuple):
    """The peer will not answer what was asked beyond this stream."""

    last: int


Event = MessageReceived | StreamReset | GoAwayReceived


class _Stream:
    """One request and its answer, in whatever state."""

    __slots__ = ("body", "complete", "fields", "large", "queue", "sealed", "sent", "trailers", "window")

    def __init__(self, window: int) -> None:
        self.fields: Fields = []
        self.body = bytearray()
        self.complete = False  # all that the peer will send
        self.large = False
        self.window = window
        self.queue = bytearray()  # data that waits for room in the window
        self.trailers = b""  # the block to end with
        self.sealed = False  # nothing more will be queued
        self.sent = False  # all of our side is sent


class Connection:
    """One side of a connection; CLIENT says which. `out` is what has to be sent."""

    def __init__(self, *, client: bool = False) -> None:
        self.out = bytearray()
        self._client = client
        self._preface = b"" if client else PREFACE
        self._decoder = Decoder()
        self._input = bytearray()
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        self._window, self._peer_window, self._peer_frame = _WINDOW, _WINDOW, _FRAME_BYTES
        self._used = 0  # of the peer's window for us, not yet given back
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags and what is there of its fields
        if client:
            self.out += PREFACE
        self._frame(
            _SETTINGS,
            0,
            0,
            _SETTING.pack(3, _MOST_STREAMS) + _SETTING.pack(4, _OUR_WINDOW)
            if not client
            else _SETTING.pack(2, 0) + _SETTING.pack(4, _OUR_WINDOW),
        )
        self._frame(_WINDOW_UPDATE, 0, 0, struct.pack("!I", 16 * MESSAGE_BYTES - _WINDOW))

    @property
    def streams(self) -> frozenset[int]:
        """The open streams."""
        return frozenset(self._streams)

    def waiting(self, stream: int) -> int:
        """Returns how many bytes of STREAM wait for room in the peer's window."""
        state = self._streams.get(stream)
        return len(state.queue) if state else 0

    # --- what we say -----------------------------------------------------------------------------------------

    def ask(self, block: bytes, body: bytes) -> int:
        """Sends a request and returns its stream."""
        stream = self._last = self._last + 2 if self._last else 1
        state = self._streams[stream] = _Stream(self._peer_window)
        self._frame(_HEADERS, _END_HEADERS, stream, block)
        state.queue += body
        state.sealed = True
        self._flow(stream)
        return stream

    def answer(self, stream: int, block: bytes, *, end: bool = False) -> None:
        """Sends the fields of an answer; END: they are all of it. Does nothing for a stream that has ended."""
        if stream in self._streams:
            self._frame(_HEADERS, _END_HEADERS | (_END_STREAM if end else 0), stream, block)
            if end:
                self._finish(stream)

    def data(self, stream: int, data: bytes) -> None:
        """Sends DATA as soon as the peer has room for it."""
        state = self._streams.get(stream)
        if state is not None and not state.sealed:
            state.queue += data
            self._flow(stream)

    def end(self, stream: int, trailers: bytes) -> None:
        """Ends an answer with TRAILERS once its data is sent."""
        state = self._streams.get(stream)
        if state is not None and not state.sealed:
            state.trailers, state.sealed = trailers, True
            self._flow(stream)

    def goaway(self, code: int = 0) -> None:
        """Says that this connection ends."""
        self._frame(_GOAWAY, 0, 0, struct.pack("!II", 0 if self._client else self._last, code))

    # --- what we hear ----------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Returns the events that DATA completes.

        Raises:
            Http2Error: The connection must be closed; `out` ends with the GOAWAY that says why.
        """
        self._input += data
        events: list[Event] = []
        try:
            if self._preface:
                if not self._input.startswith(self._preface[: len(self._input)]):
                    raise Http2Error(1, "no HTTP/2 preface")
                if len(self._input) < len(self._preface):
                    return events
                del self._input[: len(self._preface)]
                self._preface = b""
            at = 0
            while len(self._input) - at >= _HEAD.size:
                high, low, kind, flags, stream = _HEAD.unpack_from(self._input, at)
                length = high << 16 | low
                if length > _FRAME_BYTES:
                    raise Http2Error(6, f"a frame of {length} bytes")
                if len(self._input) - at < _HEAD.size + length:
                    break
                start = at + _HEAD.size
                payload = bytes(self._input[start : start + length])
                at = start + length
                self._handle(kind, flags, stream & _MOST_WINDOW, payload, events)
            del self._input[:at]
        except (HpackError, struct.error, IndexError) as error:
            self.goaway(9)
            raise Http2Error(9, str(error)) from error
        except Http2Error as error:
            self.goaway(error.code)
            raise
        return events

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if self._block is not None and (kind != _CONTINUATION or stream != self._block[0]):
            raise Http2Error(1, "fields were broken off")
        if kind == _DATA:
            self._data(flags, stream, payload, events)
        elif kind in (_HEADERS, _CONTINUATION):
            self._headers(kind, flags, stream, payload, events)
        elif kind == _RST_STREAM:
            if stream in self._streams:
                self._forget(stream)
                events.append(StreamReset(stream))
        elif kind == _SETTINGS:
            self._settings(flags, payload)
        elif kind == _PING:
            if len(payload) != 8:
                raise Http2Error(6, "a ping of the wrong size")
            if not flags & _ACK:
                self._frame(_PING, _ACK, 0, payload)
        elif kind == _GOAWAY:
            events.append(GoAwayReceived(struct.unpack_from("!I", payload)[0] & _MOST_WINDOW))
        elif kind == _WINDOW_UPDATE:
            self._grow(stream, struct.unpack("!I", payload)[0] & _MOST_WINDOW)
        elif kind == _PUSH:
            raise Http2Error(1, "a push")

    def _data(self, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        self._used += len(payload)
        if self._used >= MESSAGE_BYTES:
            self._frame(_WINDOW_UPDATE, 0, 0, struct.pack("!I", self._used))
            self._used = 0
        state = self._streams.get(stream)
        if state is None or state.complete:
            if not stream or stream > self._last:
                raise Http2Error(1, "data of a stream that was not opened")
            return  # of one that was given up meanwhile
        data = _unpadded(flags, payload)
        buffered = sum(len(other.body) for other in self._streams.values())
        if (
            state.large
            or len(state.body) + len(data) > MESSAGE_BYTES + 5
            or buffered + len(data) > _BUFFER_BYTES
        ):
            state.large = True
            state.body.clear()
            if len(payload):  # it has to end some time
                self._frame(_WINDOW_UPDATE, 0, stream, struct.pack("!I", len(payload)))
        else:
            state.body += data
        if flags & _END_STREAM:
            self._message_received(stream, state, events)

    def _headers(self, kind: int, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if kind == _HEADERS:
            block = _unpadded(flags, payload)
            self._block = stream, flags, bytearray(block[5:] if flags & _PRIORITY else block)
        elif self._block is None:
            raise Http2Error(1, "fields that nothing began")
        else:
            self._block[2].extend(payload)
        if len(self._block[2]) > _HEADER_BYTES:
            raise Http2Error(_ENOUGH, "too many fields")
        if not flags & _END_HEADERS:
            return
        _, first, raw = self._block
        self._block = None
        fields = self._decoder.decode(bytes(raw))
        state = self._streams.get(stream) or self._opened(stream)
        if state is None:
            return
        if state.complete:
            raise Http2Error(_CLOSED, "fields of a stream that was ended")
        if state.fields and not (
            first & _END_STREAM or self._client
        ):  # an answer has such before its last ones
            raise Http2Error(1, "fields in the midst of a request")
        state.fields += fields
        if sum(len(name) + len(value) + 32 for name, value in state.fields) > _HEADER_BYTES:
            raise Http2Error(_ENOUGH, "too many fields")
        if first & _END_STREAM:
            self._message_received(stream, state, events)

    def _opened(self, stream: int) -> _Stream | None:
        """The peer's new stream; None where it was given up meanwhile, or is refused."""
        if self._client or stream <= self._last:
            return None
        if not stream & 1:
            raise Http2Error(1, "a stream with an even number")
        self._last = stream
        if len(self._streams) >= _MOST_STREAMS:
            self._frame(_RST_STREAM, 0, stream, struct.pack("!I", _REFUSED))
            return None
        state = self._streams[stream] = _Stream(self._peer_window)
        return state

    def _message_received(self, stream: int, state: _Stream, events: list[Event]) -> None:
        state.complete = True
        events.append(MessageReceived(stream, state.fields, bytes(state.body), state.large))
        state.body = bytearray()
        if self._client:
            self._forget(stream)

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        for name, value in _SETTING.iter_unpack(payload):
            if name == 4:
                if value > _MOST_WINDOW:
                    raise Http2Error(3, "a window of that size is not possible")
                for state in self._streams.values():
                    state.window += value - self._peer_window
                self._peer_window = value
            elif name == 5:
                if not _FRAME_BYTES <= value < 1 << 24:
                    raise Http2Error(1, "frames of that size are not possible")
                self._peer_frame = value
        self._frame(_SETTINGS, _ACK, 0, b"")
        for stream in list(self._streams):
            self._flow(stream)

    def _grow(self, stream: int, count: int) -> None:
        if stream == 0:
            self._window += count
            if self._window > _MOST_WINDOW:
                raise Http2Error(3, "a window of that size is not possible")
            for each in list(self._streams):
                self._flow(each)
        elif stream in self._streams:
            self._streams[stream].window += count
            if self._streams[stream].window > _MOST_WINDOW:
                raise Http2Error(3, "a window of that size is not possible")
            self._flow(stream)

    # --- flow ------------------------------------------------------------------------------------------------

    def _flow(self, stream: int) -> None:
        """Sends what there is room for."""
        state = self._streams[stream]
        while state.queue and min(state.window, self._window) > 0:
            size = min(len(state.queue), state.window, self._window, self._peer_frame)
            last = size == len(state.queue) and state.sealed and not state.trailers
            self._frame(_DATA, _END_STREAM if last else 0, stream, bytes(state.queue[:size]))
            del state.queue[:size]
            state.window -= size
            self._window -= size
            state.sent = state.sent or last
        if state.sealed and not state.queue and state.trailers and not state.sent:
            self._frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, state.trailers)
            self._finish(stream)

    def _finish(self, stream: int) -> None:
        """Our side of a stream is sent; a peer whose side is not is told to stop."""
        if not self._streams[stream].complete:
            self._frame(_RST_STREAM, 0, stream, struct.pack("!I", 0))
        self._forget(stream)

    def _forget(self, stream: int) -> None:
        self._streams.pop(stream, None)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        length = len(payload)
        self.out += _HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream)
        self.out += payload

    # --- to go on in another process -------------------------------------------------------------------------

    def export(self) -> dict[str, Any]:
        """All that this side knows, as JSON can have it."""
        block = self._block
        return {
            "out": _text(self.out),
            "preface": len(self._preface),
            "table": [[_text(name), _text(value)] for name, value in self._decoder.table],
            "limit": self._decoder.limit,
            "input": _text(self._input),
            "last": self._last,
            "window": self._window,
            "peer_window": self._peer_window,
            "peer_frame": self._peer_frame,
            "used": self._used,
            "block": [block[0], block[1], _text(block[2])] if block else None,
            "streams": {
                str(number): {
                    "fields": [[_text(name), _text(value)] for name, value in state.fields],
                    "body": _text(state.body),
                    "heard": state.complete,
                    "large": state.large,
                    "window": state.window,
                    "queue": _text(state.queue),
                    "trailers": _text(state.trailers),
                    "sealed": state.sealed,
                }
                for number, state in self._streams.items()
            },
        }

    @classmethod
    def restored(cls, exported: dict[str, Any]) -> Connection:
        """A server's side that goes on where `export` was called."""
        connection = cls()
        connection.out = bytearray(_bytes(exported["out"]))
        connection._preface = PREFACE if exported["preface"] else b""
        connection._decoder = Decoder(
            [(_bytes(name), _bytes(value)) for name, value in exported["table"]], exported["limit"]
        )
        connection._input = bytearray(_bytes(exported["input"]))
        connection._last, connection._used = exported["last"], exported["used"]
        connection._window, connection._peer_window = exported["window"], exported["peer_window"]
        connection._peer_frame = exported["peer_frame"]
        if exported["block"]:
            stream, flags, raw = exported["block"]
            connection._block = stream, flags, bytearray(_bytes(raw))
        for number, saved in exported["streams"].items():
            state = connection._streams[int(number)] = _Stream(saved["window"])
            state.fields = [(_bytes(name), _bytes(value)) for name, value in saved["fields"]]
            state.body, state.queue = bytearray(_bytes(saved["body"])), bytearray(_bytes(saved["queue"]))
            state.complete, state.large, state.sealed = saved["heard"], saved["large"], saved["sealed"]
            state.trailers = _bytes(saved["trailers"])
        return connection


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    count = payload[0]
    if count >= len(payload):
        raise Http2Error(1, "more padding than frame")
    return payload[1 : len(payload) - count]


def _text(data: bytes | bytearray) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _bytes(text: str) -> bytes:
    return binascii.a2b_base64(text)
