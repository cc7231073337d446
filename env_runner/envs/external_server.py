"""A server of this machine for simulators that ask for actions; docs/external-protocol.md has the protocol."""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from epibatch.core.errors import ConfigError, EpibatchError, RunnerError
from epibatch.core.spaces import get_base_struct_from_space
from epibatch.core.structs import flatten

from .external_envs import ExternalEnvs

_LENGTHS = struct.Struct("!II")
_LONGEST_HEADER, _LONGEST_HELLO_S, _CHUNK = 2**16, 10.0, 2**20
_TYPES = {dtype.str: dtype for dtype in map(np.dtype, "?bBhHiIqQefd")}
_WIDEST = max(dtype.itemsize for dtype in _TYPES.values())
_MESSAGES = {
    "start_episode": (),
    "observe": ("episode_id", "observation", "reward", "info"),
    "end_episode": ("episode_id", "observation", "reward", "terminated", "truncated", "info"),
}


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int beyond the range of floats
        return False


_FITS: dict[str, Callable[[Any], bool]] = {
    "reward": _is_number,
    "terminated": lambda flag: isinstance(flag, bool),
    "truncated": lambda flag: isinstance(flag, bool),
    "info": lambda info: isinstance(info, dict) and not any(isinstance(value, (dict, list)) for value in info.values()),
}
"""Checks of values in headers."""


class _Fault(Exception):
    """A fault in a message, after which the connection cannot go on."""


class EpisodeServer:
    """Listens at 127.0.0.1 and passes the messages of clients to `ExternalEnvs`, in a thread for each client.

    A client plays one episode at a time, so that it cannot take the places of others. A wrong message is answered with
    an error, and concerns its client alone. A message that cannot be read also ends the connection. The episode of a
    client whose connection ends is truncated.

    Args:
        envs: What the messages are passed to.
        port: Where it listens; 0: any free port.
        token: What clients must know; default: a random one.
        max_clients: Connections at once.
        idle_timeout_s: Seconds in which a client's next message must have come, simulation included.

    Attributes:
        settings: The names of the settings.
        port: Where it listens.
        token: What clients must know.

    Raises:
        ConfigError: a setting that does not fit.
        RunnerError: the port is taken.
    """

    settings: ClassVar[tuple[str, ...]] = ("token", "max_clients", "idle_timeout_s")

    def __init__(
        self,
        envs: ExternalEnvs,
        *,
        port: int = 0,
        token: str | None = None,
        max_clients: int = 64,
        idle_timeout_s: float = 60.0,
    ) -> None:
        limits = {"max_clients": max_clients, "idle_timeout_s": idle_timeout_s}
        fits = {name: _is_number(limit) and 0 < limit < 1e9 for name, limit in limits.items()}  # as sockets take them
        fits["port"] = type(port) is int and 0 <= port < 2**16
        fits["token"] = token is None or (isinstance(token, str) and bool(token))
        if not all(fits.values()):
            name = next(name for name in fits if not fits[name])
            expected, do = "a port, a token of text, and limits from 0 to 1e9", f"correct {name}"
            found = repr({**limits, "port": port, "token": token}[name])
            raise ConfigError(f"environment.env_config, {name}", expected=expected, found=found, do=do)
        self._envs, self._seconds, self._max_clients = envs, idle_timeout_s, max_clients
        leaves, _ = flatten(get_base_struct_from_space(envs.single_observation_space))
        self._max_bytes = _WIDEST * sum(math.prod(leaf.shape) for leaf in leaves)
        self.token = secrets.token_urlsafe() if token is None else token
        self._clients: set[socket.socket] = set()
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            do = "set another env_config port; each runner needs its own, those of evaluations too"
            where = "ExternalEnvRunner, port"
            raise RunnerError(where, expected="a free port", found=f"{port}: {error.strerror}", do=do) from error
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="episode-server", daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for connection in [self._listener, *self._clients]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed, or too many files are open
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.1)
                continue
            if len(self._clients) >= 2 * self._max_clients:  # those above the limit are at least told so
                connection.close()
                continue
            self._clients.add(connection)
            threading.Thread(target=self._serve, args=[connection], name="episode-client", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer a client until it goes, or sends what cannot be read."""
        episodes: set[str] = set()
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._clients) > self._max_clients:
                raise _Fault(f"at most {self._max_clients} clients at once")
            self._welcome(connection)
            while True:
                message = self._received(connection, self._seconds, self._max_bytes)
                try:
                    answer = self._answer(message, episodes)
                except (EpibatchError, RecursionError) as error:
                    answer = {"error": str(error)}, b""
                _send(connection, *answer)
        except _Fault as fault:
            _send_last(connection, {"error": str(fault)})
        except OSError:  # the client has gone
            pass
        finally:
            self._clients.discard(connection)
            connection.close()
            for episode_id in episodes:
                self._envs.lose_episode(episode_id)

    def _welcome(self, connection: socket.socket) -> None:
        header, _ = self._received(connection, min(self._seconds, _LONGEST_HELLO_S), 0)
        token = header.get("token")
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(errors="replace"), self.token.encode()):
            raise _Fault("the first message must have the server's token")
        _send(connection, {"protocol": 1})

    def _received(self, connection: socket.socket, seconds: float, max_bytes: int) -> tuple[dict[str, Any], bytearray]:
        """Return the next message of a client: header and body."""
        deadline = time.monotonic() + seconds
        try:
            length, size = _LENGTHS.unpack(_read(connection, _LENGTHS.size, deadline))
            if length > _LONGEST_HEADER or size > max_bytes:
                limits = f"{_LONGEST_HEADER:,} bytes as header and {max_bytes:,} as body"
                raise _Fault(f"a message may have {limits}, found {length:,} and {size:,}")
            header = json.loads(_read(connection, length, deadline))
            body = _read(connection, size, deadline)
        except TimeoutError:
            raise _Fault(f"no whole message in {seconds:g} s") from None
        except (ValueError, RecursionError) as error:
            raise _Fault(f"the header is no JSON: {error}") from None
        if not isinstance(header, dict):
            raise _Fault("the header is no JSON object")
        return header, body

    def _answer(self, message: tuple[dict[str, Any], bytearray], episodes: set[str]) -> tuple[dict[str, Any], bytes]:
        """Do what a message asks for, and return header and body of the answer.

        Raises:
            EpibatchError: it does not fit.
        """
        header, body = message
        kind = header.pop("type", None)
        names = _MESSAGES.get(kind) if isinstance(kind, str) else None
        if names is None or not header.keys() <= {*names}:
            known = f"one of {', '.join(_MESSAGES)}, with {', '.join(names or ('its keys',))}"
            raise _misfit("type", known, f"{kind!r} with {', '.join(header)}")
        if kind == "start_episode" and episodes:
            raise _misfit("type", "the end of the client's episode before its next one", "start_episode")
        if kind == "start_episode":
            episode_id = self._envs.start_episode()
            episodes.add(episode_id)
            return {"episode_id": episode_id}, b""
        episode_id = header.pop("episode_id", None)
        if not isinstance(episode_id, str) or episode_id not in episodes:
            raise _misfit("episode_id", "an id that start_episode gave to this client", repr(episode_id))
        for name, value in header.items():
            if name in _FITS and not _FITS[name](value):
                expected = "a finite number as reward, true or false as flags, an object of numbers and texts as info"
                raise _misfit(name, expected, json.dumps(value))
        header["observation"] = _Arrays(body).of(header.get("observation"), self._envs.single_observation_space)
        if kind == "end_episode":
            self._envs.end_episode(episode_id, **header)
            episodes.discard(episode_id)
            return {}, b""
        action = self._envs.observe(episode_id, **header)
        if action is None:
            episodes.discard(episode_id)
            return {"action": None}, b""
        parts: list[bytes] = []
        return {"action": _described(action, parts)}, b"".join(parts)


class _Arrays:
    """The arrays of a message, in the order in which its header describes them."""

    def __init__(self, body: bytearray) -> None:
        self._body, self._used = body, 0

    def of(self, described: Any, space: gym.Space[Any]) -> Any:
        """Return the observation that a header describes.

        Raises:
            RunnerError: it does not describe one of the space, or the body has other bytes.
        """
        observation = self._part(described, get_base_struct_from_space(space))
        if self._used != len(self._body):
            raise _misfit("observation", f"a body of {self._used:,} bytes", f"{len(self._body):,} bytes")
        return observation

    def _part(self, described: Any, space: Any) -> Any:
        if isinstance(space, dict) and isinstance(described, dict) and described.keys() == space.keys():
            return {key: self._part(part, space[key]) for key, part in described.items()}
        if isinstance(space, tuple) and isinstance(described, list) and len(described) == len(space):
            return tuple(map(self._part, described, space))
        if (
            isinstance(space, (dict, tuple))
            or not isinstance(described, dict)
            or described.keys() != {"dtype", "shape"}
        ):
            expected = f'{{"dtype": ..., "shape": [...]}} in the nesting of {space}'
            raise _misfit("observation", expected, json.dumps(described))
        name, shape = described["dtype"], described["shape"]
        if not isinstance(name, str) or name not in _TYPES or shape != list(space.shape):
            expected = f"shape {list(space.shape)} and one of the types {', '.join(_TYPES)}"
            raise _misfit("observation", expected, json.dumps(described))
        dtype, count = _TYPES[name], math.prod(space.shape)
        start, self._used = self._used, self._used + count * dtype.itemsize
        if self._used > len(self._body):
            raise _misfit("observation", f"a body of at least {self._used:,} bytes", f"{len(self._body):,} bytes")
        return np.frombuffer(self._body, dtype, count, start).reshape(space.shape)


def _described(action: Any, parts: list[bytes]) -> Any:
    """Return what a header has in place of an action, whose bytes are added to `parts`."""
    if isinstance(action, Mapping):
        return {key: _described(part, parts) for key, part in action.items()}
    if isinstance(action, tuple):
        return [_described(part, parts) for part in action]
    array = np.asarray(action)
    array = array.astype(array.dtype.newbyteorder("<"))
    parts.append(array.tobytes())
    return {"dtype": array.dtype.str, "shape": list(array.shape)}


def _misfit(name: str, expected: str, found: str) -> RunnerError:
    do = "see the protocol in docs/external-protocol.md"
    return RunnerError(f"message to a runner, {name}", expected=expected, found=found, do=do)


def _read(connection: socket.socket, count: int, deadline: float) -> bytearray:
    """Return so many bytes; memory is taken as they come.

    Raises:
        OSError: the client has gone, or the time is over.
    """
    data = bytearray()
    while len(data) < count:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connection.recv(min(count - len(data), _CHUNK))
        if not part:
            raise ConnectionError
        data += part
    return data


def _send(connection: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    text = json.dumps(header).encode()
    connection.settimeout(_LONGEST_HELLO_S)
    connection.sendall(_LENGTHS.pack(len(text), len(body)) + text + body)


def _send_last(connection: socket.socket, header: dict[str, Any]) -> None:
    """Send an answer, and read on for a second: a client that is still sending would not get it otherwise."""
    with contextlib.suppress(OSError):
        _send(connection, header)
        connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            if not connection.recv(_CHUNK):
                break
