"""Simulators that send nonsense over the socket: each gets an error, and the others play on."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import socket
import struct
import threading
import time
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from fixture_simulators import in_thread

from epibatch.algorithms import PPOConfig
from epibatch.env_runner import ExternalEnvRunner

ZEROS = np.zeros(2, "<f4").tobytes()
OBSERVATION = {"dtype": "<f4", "shape": [2]}


class Client:
    """A client that sends what it is told to."""

    def __init__(self, server, token=None):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        if token is not None:
            self.send({"token": token})
            assert self.answer()[0] == {"protocol": 1}

    def send(self, header, body=b"", size=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        self.raw(struct.pack("!II", len(text), len(body) if size is None else size) + text + body)

    def raw(self, data):
        self.socket.sendall(data)

    def read(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the server has closed")
            data += part
        return data

    def answer(self):
        sizes = struct.unpack("!II", self.read(8))
        return json.loads(self.read(sizes[0])), self.read(sizes[1])

    def ask(self, header, body=b""):
        self.send(header, body)
        return self.answer()[0]

    def is_closed(self):
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def episode(self, steps=3):
        """Play an episode, and return its id."""
        key = self.ask({"type": "start_episode"})["episode_id"]
        for t in range(steps):
            answer = self.ask({"type": "observe", "episode_id": key, "observation": OBSERVATION, "reward": t}, ZEROS)
            assert answer == {"action": {"dtype": "<i8", "shape": []}}
        end = {"type": "end_episode", "episode_id": key, "observation": OBSERVATION, "reward": steps}
        assert self.ask(end, ZEROS) == {}
        return key


class Served:
    """A runner that samples all the time, and the episodes that it returned."""

    def __init__(self, **settings):
        spaces = {"observation_space": gym.spaces.Box(-1, 1, (2,)), "action_space": gym.spaces.Discrete(3)}
        config = PPOConfig().environment(**spaces, env_config={"port": 0, "token": "secret", **settings})
        config.env_runners(env_runner_cls=ExternalEnvRunner, num_envs_per_env_runner=4, keep_running_episodes=True)
        self.runner = ExternalEnvRunner(config=config)
        self.server, self.episodes, self.errors, self.clients = self.runner.server, [], [], []
        self.thread = in_thread(self.sample)

    def sample(self):
        while self.runner.env is not None:
            try:
                self.episodes += self.runner.sample(num_episodes=1)
            except Exception as error:
                self.errors.append(error)
                return

    def client(self, token="secret"):
        self.clients.append(Client(self.server, token))
        return self.clients[-1]

    def stop(self):
        """Stop, and assert that nothing but this ended the sampling."""
        env = self.runner.env
        assert not self.errors
        self.runner.stop()
        self.thread.join(10)
        assert env.closed and all("stopped" in str(error) for error in self.errors)
        for client in self.clients:
            client.socket.close()


@pytest.fixture
def served():
    made = Served(idle_timeout_s=20)
    yield made
    made.stop()


OBSERVE = {"type": "observe", "episode_id": "KEY", "observation": OBSERVATION}
END = {**OBSERVE, "type": "end_episode"}
MISFITS = {
    "another shape": ({**OBSERVE, "observation": {"dtype": "<f4", "shape": [3]}}, b"\0" * 12, "shape [2]"),
    "another type": ({**OBSERVE, "observation": {"dtype": "O", "shape": [2]}}, ZEROS, "one of the types"),
    "another nesting": ({**OBSERVE, "observation": [OBSERVATION]}, ZEROS, "in the nesting of"),
    "no observation": ({"type": "observe", "episode_id": "KEY"}, b"", "in the nesting of"),
    "fewer bytes": (OBSERVE, ZEROS[:5], "a body of at least 8 bytes"),
    "more bytes": (OBSERVE, ZEROS * 2, "a body of 8 bytes"),
    "NaN": (OBSERVE, np.full(2, np.nan, "<f4").tobytes(), "finite numbers"),
    "an unknown episode": ({**OBSERVE, "episode_id": "0123456789abcdef"}, ZEROS, "an id that start_episode gave"),
    "an episode that is no text": ({**OBSERVE, "episode_id": ["KEY"]}, ZEROS, "an id that start_episode gave"),
    "a reward of text": ({**OBSERVE, "reward": "1"}, ZEROS, "a finite number as reward"),
    "an endless reward": ({**OBSERVE, "reward": float("inf")}, ZEROS, "a finite number as reward"),
    "a huge reward": ({**OBSERVE, "reward": 10**400}, ZEROS, "a finite number as reward"),
    "a reward too early": ({**OBSERVE, "reward": 1}, ZEROS, "before the first action"),
    "an end too early": (END, ZEROS, "before the first action"),
    "a flag of text": ({**END, "terminated": "no"}, ZEROS, "true or false as flags"),
    "nested info": ({**OBSERVE, "info": {"a": [[1]]}}, ZEROS, "an object of numbers and texts as info"),
    "an unknown key": ({**OBSERVE, "seed": 1}, ZEROS, "observe"),
    "an unknown type": ({"type": "reset"}, b"", "start_episode"),
    "a type of another type": ({"type": [{}]}, b"", "start_episode"),
    "a second episode": ({"type": "start_episode"}, b"", "the end of the client's episode"),
    "the token again": ({"token": "secret"}, b"", "start_episode"),
}


def test_a_message_that_does_not_fit_is_answered_and_the_connection_goes_on(served):
    other, client = served.client(), served.client()
    key = client.ask({"type": "start_episode"})["episode_id"]
    for header, body, expected in MISFITS.values():
        filled = {name: key if value == "KEY" else value for name, value in header.items()}
        assert expected in client.ask(filled, body)["error"], filled
        other.episode(1)
    assert "an id that start_episode gave" in other.ask({**OBSERVE, "episode_id": key}, ZEROS)["error"]
    assert client.ask({**OBSERVE, "episode_id": key}, ZEROS)["action"] is not None
    assert client.ask({**END, "episode_id": key, "reward": 1.0}, ZEROS) == {}


UNREADABLE = {
    "a body of 2 GB": (lambda client: client.send(OBSERVE, b"", 2**31), "a message may have"),
    "a header of 4 GB": (lambda client: client.raw(b"\xff" * 8), "a message may have"),
    "no JSON": (lambda client: client.send(b"\x80\x04\x95nothing"), "no JSON"),
    "half of JSON": (lambda client: client.send(b'{"type": '), "no JSON"),
    "a list": (lambda client: client.send([1, 2]), "no JSON object"),
    "deep JSON": (lambda client: client.send(b"[" * 60_000), "no JSON"),
    "HTTP": (lambda client: client.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "a message may have"),
}


@pytest.mark.parametrize("token", ["secret", None], ids=["with the token", "before the token"])
def test_a_message_that_cannot_be_read_ends_its_connection_alone(served, token):
    other = served.client()
    for send, expected in UNREADABLE.values():
        client = served.client(token)
        send(client)
        assert expected in client.answer()[0]["error"]
        assert client.is_closed()
        other.episode(1)


@pytest.mark.slow
def test_2_gb_are_not_read(served):
    """The server says so while the client is still sending."""
    client, other = served.client(), served.client()
    sent = threading.Event()

    def send():
        client.send(OBSERVE, b"", 2**31 - 1)
        with contextlib.suppress(ConnectionError):
            for _ in range(2**11):
                client.raw(b"\0" * 2**20)
        sent.set()

    in_thread(send)
    assert "a message may have" in client.answer()[0]["error"]
    other.episode()
    assert sent.wait(20)


@pytest.mark.parametrize("token", ["wrong", "", "secret2", 3, None, ["secret"], "\ud800"])
def test_a_wrong_token(served, token):
    client = served.client(None)
    client.send({"token": token})
    assert client.answer()[0] == {"error": "the first message must have the server's token"}
    assert client.is_closed()
    served.client().episode()


def test_silence_ends_a_connection():
    served = Served(idle_timeout_s=0.5)
    silent, half, drips = served.client(), served.client(), served.client()
    key = silent.ask({"type": "start_episode"})["episode_id"]
    silent.ask({**OBSERVE, "episode_id": key}, ZEROS)
    silent.ask({**OBSERVE, "episode_id": key, "reward": 1}, ZEROS)
    half.raw(struct.pack("!II", 20, 0) + b'{"type"')
    end = time.monotonic() + 10
    while not served.episodes and time.monotonic() < end:  # a byte now and then is no message
        with contextlib.suppress(ConnectionError):
            drips.raw(b"\0")
        time.sleep(0.1)
    for client in (silent, half):
        assert client.answer()[0] == {"error": "no whole message in 0.5 s"}
        assert client.is_closed()
    with contextlib.suppress(ConnectionError):  # what it sent after the end reset the connection
        assert "error" in drips.answer()[0]
    (episode,) = served.episodes
    assert len(episode) == 1 and episode.is_truncated and episode.get_infos(-1)["env_failure"]
    served.stop()


def test_too_many_clients():
    served = Served(max_clients=2)
    first, second = served.client(), served.client()
    third = served.client(None)
    assert third.answer()[0] == {"error": "at most 2 clients at once"}
    first.episode()
    second.socket.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        client = served.client(None)
        client.send({"token": "secret"})
        if client.answer()[0] == {"protocol": 1}:
            break
        client.socket.close()
        time.sleep(0.1)
    client.episode()
    served.stop()


def test_clients_that_go_at_any_moment(served):
    """Each byte of a message may be the last one of its client."""
    steady, message = served.client(), json.dumps({"type": "start_episode"}).encode()
    message = struct.pack("!II", len(message), 0) + message
    for count in range(0, len(message) + 1, 4):
        client = served.client()
        client.raw(message[:count])
        client.socket.close()
        steady.episode(1)
    for steps in range(4):
        client = served.client()
        key = client.ask({"type": "start_episode"})["episode_id"]
        for t in range(steps):
            client.ask({**OBSERVE, "episode_id": key, "reward": t}, ZEROS)
        client.send({**OBSERVE, "episode_id": key, "reward": steps}, ZEROS)  # and gone before the answer
        client.socket.close()
        steady.episode(1)
    steady.episode(5)
    assert max(map(len, served.episodes)) >= 3


class Fuzzer:
    """Sends messages that are wrong in every way that comes to mind, among some right ones."""

    values = (
        None,
        True,
        -1,
        0,
        1.5,
        10**400,
        float("nan"),
        "",
        "x" * 3000,
        [],
        {},
        [[]],
        {"": {}},
        OBSERVATION,
        [0, 0],
    )
    names = (
        "type",
        "episode_id",
        "observation",
        "reward",
        "terminated",
        "truncated",
        "info",
        "dtype",
        "shape",
        "token",
    )

    def __init__(self, served, seed):
        self.served, self.draw = served, random.Random(seed)
        self.client, self.key, self.answers = None, None, Counter()

    def header(self):
        draw = self.draw
        kind = draw.choice(["observe", "observe", "end_episode", "start_episode", draw.choice(self.values)])
        kind = "start_episode" if self.key is None and draw.random() < 0.8 else kind
        header = {"type": kind, "episode_id": self.key, "observation": dict(OBSERVATION)}
        if kind == "start_episode":
            header = {"type": kind}
        for _ in range(draw.choice([0, 0, 1, 1, 3])):
            part = draw.choice([header, header.get("observation") or header])
            if isinstance(part, dict):
                part[draw.choice(self.names)] = copy.deepcopy(draw.choice(self.values))
        return header

    def message(self):
        """Return the bytes of a message, and True if the server can read it."""
        draw = self.draw
        text, body = (
            json.dumps(self.header()).encode(),
            draw.choice([b"", ZEROS, ZEROS, draw.randbytes(8), b"\xff" * 8]),
        )
        message = struct.pack("!II", len(text), len(body)) + text + body
        if draw.random() < 0.15:
            kind = draw.randrange(3)
            if kind == 0:
                return message[: draw.randrange(len(message))], False
            if kind == 1:
                return draw.randbytes(draw.randrange(40)), False
            place = draw.randrange(len(message))
            return message[:place] + draw.randbytes(1) + message[place + 1 :], False
        return message, True

    def send_one(self):
        if self.client is None:
            self.client = self.served.client()
            self.key = None
        data, is_readable = self.message()
        try:
            self.client.raw(data)
            if not is_readable:
                self.client.socket.shutdown(socket.SHUT_WR)
            answer, _ = self.client.answer()
            self.answers[",".join(answer)] += 1
            self.key = answer.get("episode_id", self.key) if answer else None
        except ConnectionError:
            assert not is_readable
        if not is_readable or self.draw.random() < 0.02:
            self.client.socket.close()
            self.client = None


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_messages_break_nothing(served, count):
    steady, fuzzer, played = served.client(), Fuzzer(served, 1), 0
    for number in range(count):
        fuzzer.send_one()
        if number % 50 == 0:
            steady.episode(2)
            played += 1
    assert fuzzer.answers.keys() == {"error", "action", "episode_id", ""}  # some were right, too
    steady.episode(2)
    whole = [episode for episode in served.episodes if episode.get_rewards().tolist() == [1.0, 2.0]]
    assert len(whole) >= played
    assert served.thread.is_alive() and threading.active_count() < 20
