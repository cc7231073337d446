"""Environments from ids, names, classes and functions, with wrappers, for one agent and several."""

from __future__ import annotations

import sys
import types

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium.spaces import Box, Discrete, Sequence, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from epibatch.algorithms import PPOConfig
from epibatch.core.errors import (
    ConfigError,
    EpibatchWarning,
    MissingExtraError,
    SpaceError,
    UnknownNameError,
)
from epibatch.core.registry import register_env
from epibatch.env_runner import (
    EnvContext,
    MultiAgentEnv,
    MultiAgentEnvRunner,
    ParallelPettingZooEnv,
    PettingZooEnv,
    SingleAgentEnvRunner,
    make_multi_agent,
    make_vector_env,
    make_vector_multi_agent_env,
)

# ------------------------------------------------------------------------------------ classes and functions


class Sized(gym.Env):
    """Made with one dict; the size of its observations shows what it was made with."""

    action_space = Discrete(2)

    def __init__(self, config):
        self.observation_space = Box(0, 1, (config["size"],))

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}


class Spread(Sized):
    """The same, made with keywords."""

    def __init__(self, size=1):
        super().__init__({"size": size})


@pytest.mark.parametrize(
    "env",
    [
        Sized,
        Spread,
        lambda config: Sized(config),
        lambda length=1, env_config=None: Sized(env_config),
        lambda context: Sized(context),
        lambda context, /: Sized(context),
        lambda size: Sized({"size": size}),
        lambda size, config=None: Sized({"size": size}),
        lambda *, size: Sized({"size": size}),
        lambda size=1, **others: Sized({"size": size}),
        "sized_by_name",
    ],
    ids=[
        *("dict", "keywords", "function", "default", "context", "positional", "required keyword"),
        *("beside a config", "keyword alone", "any keywords", "registered"),
    ],
)
def test_a_class_or_function_and_its_config(env):
    register_env("sized_by_name", Sized)
    made = make_vector_env(env, 2, env_config={"size": 5})
    assert made.num_envs == 2 and made.single_observation_space.shape == (5,)
    made.close()


def cart_poles(num_envs=2, autoreset_mode=AutoresetMode.NEXT_STEP):
    return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * num_envs, autoreset_mode=autoreset_mode)


def test_a_required_parameter_that_no_key_names_gets_the_config_and_a_warning_if_keys_name_others():
    def made(cfg, size=1):
        return Sized(cfg)

    with pytest.warns(EpibatchWarning, match=r"(?s)for cfg.*size: other parameters of made.*give cfg too"):
        env = make_vector_env(made, 1, env_config={"size": 5})
    assert env.single_observation_space.shape == (5,)
    env.close()


@pytest.mark.parametrize(
    "env", [lambda num_envs, size: cart_poles(size), lambda cfg, num_envs: cart_poles(cfg["size"])]
)
def test_a_vector_environment_gets_its_config_by_the_same_rule(env):
    made = make_vector_env(env, 3, "vector_entry_point", {"size": 3})
    assert made.num_envs == 3
    made.close()


def five_cart_poles():
    return cart_poles(5)


def test_a_vector_environment_of_ones_own():
    takes_anything = lambda num_envs, **others: cart_poles(num_envs)  # noqa: E731
    for own in (cart_poles, takes_anything, lambda config: cart_poles(config["n"])):
        env = make_vector_env(own, 3, "vector_entry_point", {"n": 3} if own is not cart_poles else {})
        assert env.num_envs == 3
        env.close()


def test_a_refused_vector_environment_is_closed():
    env = cart_poles()
    with pytest.raises(ConfigError):
        make_vector_env(lambda: env, 3, "vector_entry_point")
    assert env.closed


# ------------------------------------------------------------------------------------ Gymnasium's ids


@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
def test_an_id(mode):
    env = make_vector_env("CartPole-v1", 3, mode)
    assert env.num_envs == 3 and env.reset(seed=0)[0].shape == (3, 4)
    assert (type(env.unwrapped).__name__ == "CartPoleVectorEnv") == (mode == "vector_entry_point")
    env.close()


def test_keywords_of_an_id_and_its_time_limit():
    for limit in (7, 900):  # registered with 500
        config = {"sutton_barto_reward": True, "max_episode_steps": limit}
        env = make_vector_env("CartPole-v1", 1, env_config=config).envs[0]
        assert env.unwrapped._sutton_barto_reward is True and env.spec.max_episode_steps == limit


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_vector_entry_point_that_takes_the_mode_gets_it(mode, monkeypatch):
    spec = gym.envs.registration.EnvSpec("OwnCartPole-v0", vector_entry_point=cart_poles)
    monkeypatch.setitem(gym.registry, "OwnCartPole-v0", spec)
    env = make_vector_env("OwnCartPole-v0", 2, "vector_entry_point", autoreset=mode)
    assert env.metadata["autoreset_mode"] is AutoresetMode[mode.upper()] and env.num_envs == 2
    env.close()


@pytest.mark.parametrize("name", ["same_step", "SameStep", AutoresetMode.SAME_STEP])
def test_modes_by_gymnasiums_names_and_in_small_letters(name):
    assert make_vector_env("CartPole-v1", 1, autoreset=name).metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_a_vector_environment_that_does_not_say_its_mode_resets_in_the_next_step():
    def own():
        made = cart_poles()
        made.metadata = {}
        return made

    make_vector_env(own, 2, "vector_entry_point", autoreset="next_step").close()
    with pytest.raises(ConfigError, match="'next_step': it resets in its own way"):
        make_vector_env(own, 2, "vector_entry_point", autoreset="same_step")


# ------------------------------------------------------------------------------------ what cannot be made


def needs_more():
    raise gym.error.DependencyNotInstalled("box2d is not installed")


def forgets(env):
    """A wrapper without return."""


class Bare(gym.Env):
    observation_space = Discrete(2)


class Odd(gym.Env):
    action_space = Discrete(2)

    def __init__(self, space):
        self.observation_space = space


V = "vector_entry_point"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((None, 1), ConfigError, "environment"),
        ((3, 1), ConfigError, r"an environment class or a function[\s\S]*int: 3"),
        ((Spread(), 1), ConfigError, "an environment class or a function"),
        ((Spread, 1, "sync", {"sise": 2}), ConfigError, r"(?s)env_config\n.*Spread takes.*'sise'.*did you mean 'size'"),
        ((lambda num_envs, size=1: None, 1, V, {"sise": 2}), ConfigError, "did you mean 'size'"),
        (
            (lambda size, speed: None, 1, "sync", {"size": 2}),
            ConfigError,
            r"\{'size': 2\}, without 'speed'\n.*give speed",
        ),
        ((lambda size: None, 1, "sync", {"size": 2, "sped": 1}), ConfigError, "'sped'"),
        ((lambda *, size: None, 1), ConfigError, "without 'size'"),
        ((lambda num_envs, size, speed: None, 1, V, {"size": 2}), ConfigError, "without 'speed'"),
        ((needs_more, 1), ConfigError, r"box2d is not installed\n.*install them"),
        ((lambda: None, 1), ConfigError, "found:    None: does the function return it"),
        ((lambda: "CartPole-v1", 2), ConfigError, "found:    str 'CartPole-v1'"),
        ((lambda: None, 1, "async"), ConfigError, "found:    None: does the function return it"),
        ((cart_poles, 2), ConfigError, "set gym_env_vectorize_mode='vector_entry_point'"),
        ((Bare, 2), ConfigError, "expected: a gymnasium Space as action_space"),
        ((lambda: gym.make("CartPole-v1"), 1, "sync", {}, None, [forgets]), ConfigError, r"by forgets\n.*Env\n.*None"),
        (("CartPole-v1", 1, "snyc"), ConfigError, "did you mean 'sync'"),
        (("CartPole-v1", 1, "sync", {}, "same"), ConfigError, "'next_step', 'same_step', 'disabled'"),
        (("CartPole-v1", 1, "sync", {}, 3), ConfigError, "'next_step', 'same_step', 'disabled'"),
        # ids
        (("CartPol-v1", 1), UnknownNameError, "did you mean 'CartPole-v"),
        (("CartPol-v1", 2, "async"), UnknownNameError, "did you mean 'CartPole-v"),
        (("CartPol-v1", 2, V), UnknownNameError, "did you mean 'CartPole-v"),
        (("Qqqqqq", 1), UnknownNameError, "check the spelling; an environment of a module of yours"),
        (("ALE/NoGame-v5", 1), UnknownNameError, r"(?s)'ALE'.*pip install ale-py.*'ale_py:ALE/NoGame-v5'.*--allow-im"),
        (("rooms/Big-v0", 1), UnknownNameError, r"namespace 'rooms'\n.*install the package.*'its_module:rooms/Big-v0'"),
        (("PHYS2D/CartPole-v1", 1), UnknownNameError, "did you mean 'phys2d/CartPole-v1'"),
        (("CartPole-v1", 1, "sync", {"render": 1}), ConfigError, r"(?s)env_config\n.*did you mean 'render_mode'"),
        # vector environments
        (("Pendulum-v1", 2, V), ConfigError, r"(?s)'Pendulum-v1'.*without vector_entry_point.*'sync'.*CartPole-v1"),
        (("CartPole-v1", 2, V, {}, "same_step"), ConfigError, r"'same_step', as gym.*\n.*'next_step'.*its own way"),
        ((five_cart_poles, 2, V), ConfigError, r"2 environments, as num_envs_per_env_runner says\n.*num_envs = 5"),
        ((lambda: None, 2, V), ConfigError, r"a gymnasium.vector.VectorEnv\n.*None"),
        ((Spread, 1, V), ConfigError, r"VectorEnv[\s\S]*Spread[\s\S]*take 'sync' if single environments are made"),
        ((gym.vector.VectorEnv, 2, V), ConfigError, "no num_envs, single_observation_space, single_action_space"),
        ((cart_poles, 2, V, {}, None, ["ClipAction"]), ConfigError, r"gymnasium\.wrappers\.vector"),
        # observations without one shape
        (
            (lambda: Odd(Sequence(Text(3))), 2),
            SpaceError,
            r"observation space\n[\s\S]*wrappers.TransformObservation",
        ),
        ((lambda: Odd(gym.spaces.OneOf([Discrete(3)])), 2), SpaceError, "observation space\n"),
        (
            (lambda: Odd(gym.spaces.Dict(b=Tuple([gym.spaces.OneOf([Discrete(3)])]))), 2),
            SpaceError,
            r"observation space\['b'\]\[0\]",
        ),
    ],
)
def test_what_cannot_be_made(arguments, error, words):
    with pytest.raises(error, match=words):
        make_vector_env(*arguments)


def test_nothing_is_suggested_for_a_name_that_is_like_no_other():
    with pytest.raises(UnknownNameError) as caught:
        make_vector_env("Qqqqqq", 1)
    assert not [id_ for id_ in gym.registry if id_ in str(caught.value)]


def test_a_text_environment_works_with_the_wrapper_that_the_error_names():
    class Says(Odd):
        def __init__(self):
            super().__init__(Text(5))

        def reset(self, *, seed=None, options=None):
            return "abc", {}

    def encode(text):
        return np.frombuffer(text.ljust(5).encode(), np.uint8)

    box = Box(0, 255, (5,), np.uint8)
    env = make_vector_env(Says, 2, wrappers=[lambda env: gym.wrappers.TransformObservation(env, encode, box)])
    assert env.reset()[0].tolist() == [[97, 98, 99, 32, 32]] * 2


# ------------------------------------------------------------------------------------ module:Class


@pytest.fixture
def chase(tmp_path, monkeypatch):
    """A module with an environment class of one agent, and one of several, that nobody registered."""
    name = "chase_of_test_make_env"
    (tmp_path / f"{name}.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "from epibatch.env_runner import MultiAgentEnv\n"
        "class Chase(CartPoleEnv):\n"
        "    def __init__(self, length=3):\n"
        "        super().__init__()\n"
        "        self.length_asked_for = length\n"
        "def chase():\n"
        "    return Chase()\n"
        "class Team(MultiAgentEnv):\n"
        "    def __init__(self, length=1):\n"
        "        super().__init__()\n"
        "        self.agents = self.possible_agents = ['left']\n"
        "        self.observation_space = self.action_space = gym.spaces.Discrete(100)\n"
        "        self.length = length\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return {'left': self.length}, {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_class_by_import_path_needs_no_registration(chase, mode):
    env = make_vector_env(f"{chase}:Chase", 2, mode, {"length": 7})
    assert env.num_envs == 2 and env.get_attr("length_asked_for") == (7, 7)
    env.close()


def test_a_function_by_import_path_makes_single_environments_or_a_vector_of_them(chase):
    assert make_vector_env(f"{chase}:chase", 2).get_attr("length_asked_for") == (3, 3)
    many = make_vector_env("gymnasium:make_vec", 3, "vector_entry_point", {"id": "CartPole-v1"})
    assert many.num_envs == 3


def test_an_id_of_the_module_comes_before_its_class(chase, monkeypatch):
    spec = gym.envs.registration.EnvSpec("Chase", entry_point=f"{chase}:Chase", kwargs={"length": 9})
    monkeypatch.setitem(gym.registry, "Chase", spec)
    assert make_vector_env(f"{chase}:Chase", 1).get_attr("length_asked_for") == (9,)


def test_the_path_of_a_class_is_a_setting_like_an_id(chase):
    data = {"environment": {"env": f"{chase}:Chase"}, "training": {"train_batch_size": 8, "minibatch_size": 8}}
    with pytest.raises(ConfigError, match="runs code"):
        PPOConfig.from_dict(data)
    assert chase not in sys.modules, "nothing was imported without permission"
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
        ("gym", "registers no 'gym', and its gym is no class of gymnasium.Env", "check the spelling"),
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


# ------------------------------------------------------------------------------------ wrappers


def test_the_first_wrapper_is_the_innermost():
    limit = {"wrapper": "TimeLimit", "max_episode_steps": 7}
    specs = ["RecordEpisodeStatistics", limit, gym.wrappers.TimeAwareObservation]
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
        ("ClipAction", None),
        ({"wrapper": "ActionChunks", "size": 3}, None),
        ({"wrapper": "RecordVideo", "video_folder": "v"}, None),
        (lambda env: env, None),
    ],
)
def test_wrappers_are_checked_when_they_are_set_and_when_they_are_used(spec, words):
    config = PPOConfig()
    if words is None:
        assert config.environment(wrappers=[spec]).wrappers == [spec]
        return
    with pytest.raises(ConfigError, match="wrappers") as caught:
        config.environment(wrappers=[spec])
    assert words in str(caught.value)
    with pytest.raises(ConfigError, match=r"environment\.wrappers\[1\]") as caught:
        make_vector_env("CartPole-v1", 1, wrappers=["RecordEpisodeStatistics", spec])
    assert words in str(caught.value)


# ------------------------------------------------------------------------------------ several agents


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


def pair_from_dict(env_config):
    return Pair(**env_config)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("env", [Pair, pair_from_dict, "pair_by_name", "Pair-v0", "{0}:Team"])
def test_environments_of_several_agents_of_every_kind(chase, env, mode, monkeypatch):
    register_env("pair_by_name", pair_from_dict)
    monkeypatch.setitem(gym.registry, "Pair-v0", gym.envs.registration.EnvSpec("Pair-v0", entry_point=Pair))
    env = env.format(chase) if isinstance(env, str) else env
    envs = make_vector_multi_agent_env(env, 2, mode, {"length": 7})
    assert [own["left"] for own in envs.reset(seed=0)[0]] == [7, 7]
    envs.close()


def test_wrappers_of_several_agents_are_functions_of_one_environment():
    class Doubled(gym.Wrapper):
        def reset(self, **keywords):
            observations, infos = self.env.reset(**keywords)
            return {agent: 2 * row for agent, row in observations.items()}, infos

    envs = make_vector_multi_agent_env(Pair, 2, env_config={"length": 3}, wrappers=[Doubled, Doubled])
    assert envs.reset()[0] == [{"left": 12, "right": 12}] * 2
    limited = make_vector_multi_agent_env(Pair, 1, wrappers=[{"wrapper": "TimeLimit", "max_episode_steps": 1}])
    limited.reset()
    assert limited.step([{}])[3] == [{"__all__": True}] and limited.ended.all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, 1), ConfigError, "make_multi_agent"),
        ((Pair, 1, V), ConfigError, "return a gymnasium.vector.VectorEnv"),
        ((Pair, 1, "parallel"), ConfigError, "one of"),
        ((Pair, 1, "sync", {"lenght": 2}), ConfigError, "did you mean 'length'"),
        ((Pair, 1, "sync", {}, [lambda env: None]), ConfigError, r"made by <lambda>[\s\S]*None"),
        (("CartPol-v1", 1), UnknownNameError, "did you mean 'CartPole-v1'"),
        (("CartPole-v1", 1), ConfigError, r"make_multi_agent\('CartPole-v1'\)"),
        ((3, 1), ConfigError, "int: 3"),
        ((lambda: 3, 1), ConfigError, "int 3"),
        (("pettingzoo/classic/tictacto_v3", 1), UnknownNameError, "did you mean 'classic/tictactoe-v3'"),
        (("pettingzoo/tictactoe", 1), UnknownNameError, "no such environment"),
        (("pettingzoo/classic/rps_v2", 1, "sync", {"max_cycle": 3}), ConfigError, r"rps_v2' takes\n.*max_cycle"),
    ],
)
def test_what_is_no_environment_of_several_agents(arguments, error, message):
    with pytest.raises(error, match=message):
        make_vector_multi_agent_env(*arguments)


# ------------------------------------------------------------------------------------ PettingZoo's names


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("classic/tictactoe_v3", PettingZooEnv),
        ("classic/tictactoe-v3", PettingZooEnv),
        ("classic/rps_v2", ParallelPettingZooEnv),  # there are both kinds of it
    ],
)
def test_names_of_old_and_new_releases(name, kind):
    made = make_vector_multi_agent_env(f"pettingzoo/{name}", 1).envs[0]
    assert type(made) is kind and made.possible_agents == kind(name).possible_agents


def test_a_name_of_the_other_kind():
    with pytest.raises(ConfigError, match="take PettingZooEnv, or the name 'pettingzoo/classic"):
        ParallelPettingZooEnv("classic/tictactoe_v3")
    with pytest.raises(ConfigError, match="one of several, PettingZoo's"):
        make_vector_env("pettingzoo/classic/rps_v2", 1)


@pytest.mark.parametrize(
    ("missing", "name", "message"),
    [
        ("pettingzoo", "classic/rps_v2", r"'classic/rps_v2'[\s\S]*pip install 'epibatch\[pettingzoo\]'"),
        ("chess", "classic/chess_v6", r"chess_v6'[\s\S]*chess[\s\S]*pip install 'pettingzoo\[classic\]'"),
    ],
)
def test_a_missing_package_comes_with_its_command(monkeypatch, missing, name, message):
    monkeypatch.setitem(sys.modules, missing, None)
    for module in [name for name in sys.modules if name.startswith("pettingzoo.classic.chess")]:
        monkeypatch.delitem(sys.modules, module)
    for make in (lambda: PettingZooEnv(name), lambda: make_vector_multi_agent_env(f"pettingzoo/{name}", 1)):
        with pytest.raises(MissingExtraError, match=message):
            make()


def test_a_release_without_registry(monkeypatch):
    old = types.ModuleType("pettingzoo")
    old.__version__ = "1.25.0"
    monkeypatch.setitem(sys.modules, "pettingzoo", old)
    with pytest.raises(MissingExtraError, match=r"1\.27 or newer\n.*1\.25\.0\n.*epibatch\[pettingzoo\]"):
        PettingZooEnv("classic/rps_v2")


@pytest.mark.parametrize("error", [OSError("no display"), TypeError("not of this type")])
def test_errors_of_an_environment_stay_as_they_are(monkeypatch, error):
    def broken(**kwargs):
        raise error

    spec = pettingzoo.aec_registry["classic/rps-v2"]
    monkeypatch.setitem(pettingzoo.aec_registry, "classic/rps-v2", type(spec)(id=spec.id, entry_point=broken))
    with pytest.raises(type(error), match=str(error)):
        PettingZooEnv("classic/rps_v2")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_know_their_runner(mode):
    """`env_config` has RLlib's attributes and the number of its environment; functions can be called with each."""
    config = PPOConfig().environment(Placed, env_config={"port": 7})
    config.env_runners(num_env_runners=3, num_envs_per_env_runner=2, gym_env_vectorize_mode=mode)
    runner = SingleAgentEnvRunner(config=config, worker_index=2)
    facts = [({"port": 7}, 2, number, False, 3) for number in range(2)]
    assert list(runner.env.get_attr("facts")) == runner.foreach_env(lambda env: env.facts) == facts
    assert runner.foreach_env(lambda env: setattr(env, "told", 4)) == [None, None]
    assert runner.env.get_attr("told") == (4, 4)
    runner.stop()
    games = config.multi_agent(policies={"p"}).environment(make_multi_agent(Placed))
    runner = MultiAgentEnvRunner(config=games)
    assert runner.foreach_env(lambda env: env.envs[0].facts[2]) == [0, 1]
    runner.stop()
    several = make_multi_agent(Placed)(EnvContext({"port": 7, "num_agents": 2}, worker_index=1))
    assert [env.facts[:2] for env in several.envs] == [({"port": 7}, 1)] * 2


class Placed(Spread):
    """Knows which runner it was made for."""

    def __init__(self, config):
        super().__init__()
        self.facts = (dict(config), config.worker_index, config.vector_index, config.remote, config.num_workers)
