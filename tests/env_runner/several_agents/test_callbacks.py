"""Callbacks of the runner of several agents."""

from __future__ import annotations

import pytest

from epibatch.connectors import ConnectorV2


class Log:
    """Notes what it is told, episodes by the order in which they are first seen."""

    def __init__(self):
        self.rows, self.ids, self.keywords = [], {}, {}

    def listener(self, event):
        def listen(**keywords):
            self.keywords[event] = set(keywords)
            row = [event.removeprefix("on_episode_")]
            if "episode" in keywords:
                episode = keywords["episode"]
                row += [self.ids.setdefault(episode.id_, len(self.ids)), keywords["env_index"], episode.env_t]
            if "prev_episode_chunks" in keywords:
                row.append(tuple(chunk.env_t for chunk in keywords["prev_episode_chunks"]))
            self.rows.append(tuple(row))

        return listen


EPISODE_EVENTS = ("on_episode_created", "on_episode_step", "on_episode_end")


def test_callbacks_are_told_in_order(teams):
    log = Log()
    events = (*EPISODE_EVENTS, "on_sample_end", "on_environment_created")
    callbacks = {event: log.listener(event) for event in events}
    runner = teams.runner("steady", 1, length=3, callbacks=callbacks)
    runner.sample(num_timesteps=2)
    runner.sample(num_timesteps=2)
    assert log.rows == [
        ("on_environment_created",),
        ("created", 0, 0, 0),
        ("step", 0, 0, 1),
        ("step", 0, 0, 2),
        ("on_sample_end",),
        ("step", 0, 0, 3),
        ("end", 0, 0, 3, (2,)),
        ("created", 1, 0, 0),
        ("step", 1, 0, 1),
        ("on_sample_end",),
    ]
    common = {"episode", "env_runner", "metrics_logger", "env", "rl_module", "env_index"}
    assert log.keywords["on_episode_step"] == log.keywords["on_episode_created"] == common
    assert log.keywords["on_episode_end"] == common | {"prev_episode_chunks"}


def test_a_created_episode_is_the_one_that_begins(teams):
    created, started = [], []
    callbacks = {
        "on_episode_created": lambda episode, **kwargs: created.append(episode),
        "on_episode_start": lambda episode, **kwargs: started.append(episode),
    }
    runner = teams.runner("steady", 2, length=3, callbacks=callbacks)
    runner.sample(num_episodes=4)
    runner.sample(num_episodes=1)
    assert len(started) >= 6 and all(any(one is other for other in created) for one in started)


def test_an_episode_starts_when_its_first_observation_passed_the_pipeline(teams):
    class Mark(ConnectorV2):
        def __call__(self, *, rl_module, batch, episodes, **kwargs):
            for episode in episodes:
                episode.custom_data.setdefault("shown", episode.env_t)
            return batch

    shown = []

    def note(episode, **kwargs):
        shown.append(episode.custom_data["shown"])

    callbacks = dict.fromkeys(("on_episode_start", "on_episode_step"), note)
    runner = teams.runner("steady", 2, env_to_module=[Mark()], callbacks=callbacks)
    runner.sample(num_timesteps=40)
    assert set(shown) == {0}


def test_a_callback_that_fails_beside_an_environment_does_not_hide_it(teams):
    def fail(**kwargs):
        raise ZeroDivisionError("in a callback")

    runner = teams.runner("steady", 2, fail_at=(0, 0, 7), callbacks={"on_episode_end": fail})
    with pytest.raises(ConnectionError) as raised:
        runner.sample(num_timesteps=60)
    assert isinstance(raised.value.__context__, ZeroDivisionError)
