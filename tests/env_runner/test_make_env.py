"""Environments from ids, names, classes and functions, with wrappers, for one agent and several."""

from __future__ import annotations

import sys
import types

import gymnasium as gym
import pettingzoo
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import ConfigError, EnvironmentContractError, MissingExtraError, UnknownNameError
from epibatch.core.registry import register_env
from epibatch.env_runner import make_vector_env
from epibatch.env_runner.make_env import make_vector_multi_agent_env, wrapper_problem
from epibatch.env_runner.multi_agent_env import MultiAgentEnv
from epibatch.env_runner.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv, make_by_name, pettingzoo_creator
from fixture_envs import CountingEnv


def made(kind, settings):
    env = CountingEnv()
    env.given = kind, settings
    return env


def by_position(settings):
    return made("one dict", settings)


def by_name(length=1, env_config=None):
    return made("one dict", env_config)


def by_keywords(length=1, **others):
    return made("keywords", {"length": length, **others})


@pytest.mark.parametrize("creator", [by_position, by_name, by_keywords])
def test_config_is_one_dict_or_keywords(creator):
    kind = "keywords" if creator is by_keywords else "one dict"
    assert make_vector_env(creator, 1, env_config={"length": 3}).get_attr("given") == ((kind, {"length": 3}),)


def test_a_registered_name():
    register_env("creators_by_position", by_position)
    assert make_vector_env("creators_by_position", 1).get_attr("given") == (("one dict", {}),)


def test_unknown_keywords_are_named_with_the_nearest_one():
    def narrow(length=1):
        return CountingEnv(length)

    with pytest.raises(ConfigError, match=r"narrow takes[\s\S]*'lenght'[\s\S]*did you mean 'length'"):
        make_vector_env(narrow, 1, env_config={"lenght": 3})


def test_what_makes_no_environment():
    with pytest.raises(ConfigError, match=r"an environment class or a function[\s\S]*int: 3"):
        make_vector_env(3, 1)


def test_missing_packages_are_named():
    def needs_more():
        raise gym.error.DependencyNotInstalled("box2d is not installed")

    with pytest.raises(ConfigError, match=r"box2d is not installed\n.*install them"):
        make_vector_env(needs_more, 1)


def cart_poles(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **kwargs):
    return gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, autoreset_mode=autoreset_mode)


@pytest.fixture
def own_id():
    gym.register("OwnCartPole-v0", vector_entry_point=cart_poles)
    yield "OwnCartPole-v0"
    del gym.registry["OwnCartPole-v0"]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_vector_entry_point_that_takes_the_mode_gets_it(own_id, mode):
    env = make_vector_env(own_id, 2, "vector_entry_point", autoreset=mode)
    assert env.metadata["autoreset_mode"] is AutoresetMode[mode.upper()] and env.num_envs == 2
    env.close()


def test_one_that_does_not_is_no_silent_other_mode():
    make_vector_env("CartPole-v1", 2, "vector_entry_point", autoreset="next_step").close()
    with pytest.raises(ConfigError, match=r"'same_step', as gym_env_autoreset_mode says\n.*'next_step'.*its own way"):
        make_vector_env("CartPole-v1", 2, "vector_entry_point", autoreset="same_step")


def test_an_id_without_a_vector_version():
    with pytest.raises(ConfigError, match=r"(?s)'Pendulum-v1'.*without vector_entry_point.*'sync'.*CartPole-v1"):
        make_vector_env("Pendulum-v1", 2, "vector_entry_point")


@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
def test_unknown_ids(mode):
    with pytest.raises(UnknownNameError, match="did you mean 'CartPole-v"):
        make_vector_env("CartPol-v1", 2, mode)


@pytest.fixture
def chase(tmp_path, monkeypatch):
    """A module with an environment class that nobody registered."""
    name = "chase_of_test_gymnasium_ids"
    (tmp_path / f"{name}.py").write_text(
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "class Chase(CartPoleEnv):\n"
        "    def __init__(self, length=3):\n"
        "        super().__init__()\n"
        "        self.length_asked_for = length\n"
        "def chase():\n"
        "    return Chase()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_class_by_import_path_needs_no_registration(chase, mode):
    env = make_vector_env(f"{chase}:Chase", 2, mode, {"length": 7})
    assert env.num_envs == 2 and env.get_attr("length_asked_for") == (7, 7)
    env.close()


def test_an_id_of_the_module_comes_before_its_class(chase):
    gym.register("Chase", entry_point=f"{chase}:Chase", kwargs={"length": 9})
    try:
        env = make_vector_env(f"{chase}:Chase", 1)
        assert env.get_attr("length_asked_for") == (9,)
        env.close()
    finally:
        del gym.registry["Chase"]


def test_the_path_of_a_class_is_a_setting_like_an_id(chase):
    data = {"environment": {"env": f"{chase}:Chase"}, "training": {"train_batch_size": 8, "minibatch_size": 8}}
    with pytest.raises(ConfigError, match="runs code"):
        PPOConfig.from_dict(data)
    assert chase not in sys.modules, "nothing was imported without leave"
    algorithm = PPOConfig.from_dict(data, allow_imports=True).build_algo()
    assert algorithm.env_runner.env.get_attr("length_asked_for") == (3,)
    algorithm.stop()


@pytest.mark.parametrize(
    ("name", "found", "do"),
    [
        (
            "Chase-v0",
            "registers no 'Chase-v0', but has the class Chase",
            'name the class, {0}:Chase; or add the line gym.register("Chase-v0", entry_point="{0}:Chase") '
            "to the module, for {0}:Chase-v0",
        ),
        ("chase", "registers no 'chase', and its chase is no class of gymnasium.Env", "check the spelling"),
        ("Zzz-v0", "registers no 'Zzz-v0'\n", 'check the spelling, or add the line gym.register("Zzz-v0"'),
        ("CartPol-v1", "registers no 'CartPol-v1'\n", "did you mean '{0}:CartPole-v1'?"),
    ],
)
def test_a_module_that_registers_no_such_id(chase, name, found, do):
    with pytest.raises(UnknownNameError) as caught:
        make_vector_env(f"{chase}:{name}", 1)
    message = str(caught.value)
    assert f"module {chase} was imported and {found}" in message and do.format(chase) in message
    assert "Acrobot" not in message and "Pendulum" not in message


def test_nothing_is_suggested_for_a_name_that_is_like_no_other():
    with pytest.raises(UnknownNameError) as caught:
        make_vector_env("Qqqqqq", 1)
    assert not [id_ for id_ in gym.registry if id_ in str(caught.value)]


def test_the_first_is_the_innermost():
    specs = [
        "RecordEpisodeStatistics",
        {"wrapper": "TimeLimit", "max_episode_steps": 7},
        gym.wrappers.TimeAwareObservation,
    ]
    env = make_vector_env("CartPole-v1", 1, wrappers=specs).envs[0]
    names = []
    while isinstance(env, gym.Wrapper):
        names.append(type(env).__name__)
        env = env.env
    assert names[1:4] == ["TimeAwareObservation", "TimeLimit", "RecordEpisodeStatistics"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("RecordEpisodeStatistic", "did you mean 'RecordEpisodeStatistics'"),
        ("vector", "no wrapper 'vector'"),
        ({"wrapper": "FrameSkip", "frames": 3}, "FrameSkip has no argument 'frames'"),
        ({"wrapper": "TimeLimit"}, "TimeLimit needs the argument 'max_episode_steps'"),
        ({"wrapper": "TimeLimit", "max_episode_steps": 3, "steps": 1}, "TimeLimit has no argument 'steps'"),
        ({"piece": "TimeLimit"}, "expected a wrapper's name, {wrapper: name, ...} or a function, found dict"),
        (3, "found int 3"),
    ],
)
def test_wrong_wrappers(spec, words):
    assert words in str(wrapper_problem(spec))
    with pytest.raises(ConfigError, match=r"environment\.wrappers\[1\]") as caught:
        make_vector_env("CartPole-v1", 1, wrappers=["RecordEpisodeStatistics", spec])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "ClipAction",
        {"wrapper": "ActionChunks", "size": 3},
        {"wrapper": "RecordVideo", "video_folder": "v"},
        lambda env: env,
    ],
)
def test_right_wrappers(spec):
    assert wrapper_problem(spec) is None


class Pair(MultiAgentEnv):
    """Two agents that observe the length they were made with."""

    def __init__(self, length=1):
        super().__init__()
        self.agents = self.possible_agents = ["left", "right"]
        self.observation_space, self.action_space = Discrete(100), Discrete(2)
        self.length = length

    def reset(self, *, seed=None, options=None):
        return dict.fromkeys(self.agents, self.length), {}

    def step(self, action_dict):
        return dict.fromkeys(self.agents, self.length), {}, {"__all__": False}, {}, {}


def from_dict(env_config):
    return Pair(**env_config)


@pytest.fixture
def named(tmp_path, monkeypatch):
    (tmp_path / "pairs_of_agents.py").write_text(
        "import gymnasium as gym\n"
        "from epibatch.env_runner.multi_agent_env import MultiAgentEnv\n"
        "class Own(MultiAgentEnv):\n"
        "    def __init__(self, length=1):\n"
        "        super().__init__()\n"
        "        self.agents = self.possible_agents = ['left']\n"
        "        self.observation_space = self.action_space = gym.spaces.Discrete(100)\n"
        "        self.length = length\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return {'left': self.length}, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    register_env("pair_by_name", from_dict)
    gym.register("Pair-v0", entry_point=Pair)
    yield {"class": Pair, "function": from_dict, "name": "pair_by_name", "id": "Pair-v0", "path": "pairs_of_agents:Own"}
    del gym.registry["Pair-v0"]
    sys.modules.pop("pairs_of_agents", None)


@pytest.mark.parametrize("kind", ["class", "function", "name", "id", "path"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_of_every_kind(named, kind, mode):
    envs = make_vector_multi_agent_env(named[kind], 2, mode, {"length": 7})
    assert [own["left"] for own in envs.reset(seed=0)[0]] == [7, 7]
    envs.close()


def test_wrappers_are_functions_of_one_environment():
    class Doubled(gym.Wrapper):
        def reset(self, **keywords):
            observations, infos = self.env.reset(**keywords)
            return {agent: 2 * row for agent, row in observations.items()}, infos

    envs = make_vector_multi_agent_env(Pair, 2, env_config={"length": 3}, wrappers=[Doubled, Doubled])
    assert envs.reset()[0] == [{"left": 12, "right": 12}] * 2
    with pytest.raises(ConfigError, match=r"made by <lambda>[\s\S]*None"):
        make_vector_multi_agent_env(Pair, 1, wrappers=[lambda env: None])
    limited = make_vector_multi_agent_env(Pair, 1, wrappers=[{"wrapper": "TimeLimit", "max_episode_steps": 1}])
    limited.reset()
    with pytest.raises(EnvironmentContractError, match=r"environment 'Pair', number 0[\s\S]*TimeLimit know one agent"):
        limited.step([{}])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, 1), ConfigError, "make_multi_agent"),
        ((Pair, 1, "vector_entry_point"), ConfigError, "let env make one environment"),
        ((Pair, 1, "parallel"), ConfigError, "one of"),
        ((Pair, 1, "sync", {"lenght": 2}), ConfigError, "did you mean 'length'"),
        (("CartPol-v1", 1), UnknownNameError, "did you mean 'CartPole-v1'"),
        (("CartPole-v1", 1), ConfigError, r"make_multi_agent\('CartPole-v1'\)"),
        ((3, 1), ConfigError, "int: 3"),
        ((lambda: 3, 1), ConfigError, "int 3"),
    ],
)
def test_what_is_no_such_environment(arguments, error, message):
    with pytest.raises(error, match=message):
        make_vector_multi_agent_env(*arguments)


@pytest.mark.parametrize("name", ["classic/tictactoe_v3", "classic/tictactoe-v3"])
def test_names_of_old_and_new_releases(name):
    assert make_by_name(name, "aec", {}).possible_agents == ["player_1", "player_2"]


def test_a_name_of_both_kinds_is_the_parallel_one():
    assert type(pettingzoo_creator("pettingzoo/classic/rps_v2")(max_cycles=2)) is ParallelPettingZooEnv
    assert type(pettingzoo_creator("pettingzoo/classic/tictactoe_v3")()) is PettingZooEnv


@pytest.mark.parametrize(
    ("name", "kind", "kwargs", "error", "message"),
    [
        ("classic/tictacto_v3", "aec", {}, UnknownNameError, "did you mean 'classic/tictactoe-v3'"),
        ("tictactoe", "aec", {}, UnknownNameError, "no such environment"),
        ("classic/tictactoe_v3", "parallel", {}, ConfigError, "take PettingZooEnv, or the name 'pettingzoo/classic"),
        (
            "classic/rps_v2",
            "aec",
            {"max_cycle": 3},
            ConfigError,
            r"keywords that 'classic/rps_v2' takes\n.*max_cycle",
        ),
    ],
)
def test_what_is_not_there_is_named(name, kind, kwargs, error, message):
    with pytest.raises(error, match=message):
        make_by_name(name, kind, kwargs)


def test_a_missing_package_comes_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    for make in (lambda: PettingZooEnv("classic/rps_v2"), pettingzoo_creator("pettingzoo/classic/rps_v2")):
        with pytest.raises(MissingExtraError, match=r"'classic/rps_v2'[\s\S]*pip install 'epibatch\[pettingzoo\]'"):
            make()


def test_packages_that_an_environment_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "chess", None)
    for module in [name for name in sys.modules if name.startswith("pettingzoo.classic.chess")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingExtraError, match=r"chess_v6'[\s\S]*chess[\s\S]*pip install 'pettingzoo\[classic\]'"):
        make_by_name("classic/chess_v6", "aec", {})


def test_a_release_without_registry(monkeypatch):
    old = types.ModuleType("pettingzoo")
    old.__version__ = "1.25.0"
    monkeypatch.setitem(sys.modules, "pettingzoo", old)
    with pytest.raises(MissingExtraError, match=r"1\.27 or newer\n.*1\.25\.0\n.*epibatch\[pettingzoo\]"):
        make_by_name("classic/rps_v2", "aec", {})


def test_errors_of_an_environment_stay_as_they_are(monkeypatch):
    def broken(**kwargs):
        raise OSError("no display")

    spec = pettingzoo.aec_registry["classic/rps-v2"]
    monkeypatch.setitem(pettingzoo.aec_registry, "classic/rps-v2", type(spec)(id=spec.id, entry_point=broken))
    with pytest.raises(OSError, match="no display"):
        make_by_name("classic/rps_v2", "aec", {})
