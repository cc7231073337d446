"""The options of the default networks."""

from __future__ import annotations

import pytest

from epibatch.core.errors import ConfigError
from epibatch.core.rl_module import DefaultModelConfig


def test_defaults():
    config = DefaultModelConfig()
    assert config.fcnet_hiddens == [256, 256]
    assert config.fcnet_activation == "tanh"
    assert not config.vf_share_layers
    assert not config.use_lstm
    assert (config.max_seq_len, config.lstm_cell_size, config.log_std_clip_param) == (20, 256, 20)
    assert DefaultModelConfig().fcnet_hiddens is not config.fcnet_hiddens


def test_from_dict_and_back():
    config = DefaultModelConfig.from_dict({"fcnet_hiddens": (32,), "use_lstm": True})
    assert config.fcnet_hiddens == [32]
    assert DefaultModelConfig.from_dict(config.to_dict()) == config
    assert DefaultModelConfig.from_dict(config) is config
    assert DefaultModelConfig.from_dict(None) == DefaultModelConfig.from_dict({}) == DefaultModelConfig()


def test_options_read_like_a_dict():
    config = DefaultModelConfig(max_seq_len=7)
    assert config["max_seq_len"] == config.get("max_seq_len") == 7
    assert config.get("nothing", 3) == 3
    assert "max_seq_len" in config
    assert "get" not in config
    with pytest.raises(ConfigError, match="max_seq_len"):
        config["max_seq_length"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fcnet_hidden": [1]}, "did you mean 'fcnet_hiddens'"),
        ({"fusionnet_hiddens": []}, "an RLModule of your own"),
        ({"lstm_use_prev_action": True}, "PrevActionsPrevRewards"),
        ({"conv_filters": [[16, [4, 4, 4], 2]]}, r"a list of \[channels, kernel, stride\]"),
        ({"conv_filters": [[16, 4, 0]]}, r"a list of \[channels, kernel, stride\]"),
        ({"squash_actions": 1}, "True or False"),
        ({"fcnet_hiddens": [0]}, "a list of positive integers"),
        ({"fcnet_activation": "tahn"}, "one of elu"),
        ({"max_seq_len": 0}, "a positive integer"),
        ({"lstm_cell_size": True}, "a positive integer"),
        ({"conv_filters": [[2**40, 3, 2]]}, "up to 1048576"),
        ({"conv_filters": [[4, [3, 10**9], 2]]}, "up to 1048576"),
        ({"log_std_clip_param": -1}, "a positive number"),
        ({"fcnet_kernel_initializer": 3}, "a name, a callable or None"),
        ({"fcnet_kernel_initializer_kwargs": 3}, "a dict or None"),
        ([("use_lstm", True)], "a dict or a DefaultModelConfig"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError, match=message):
        DefaultModelConfig.from_dict(options)


def test_all_wrong_options_are_listed():
    with pytest.raises(ConfigError, match=r"(?s)max_seq_len.*use_lstm|use_lstm.*max_seq_len"):
        DefaultModelConfig(max_seq_len=-1, use_lstm=1)
    with pytest.raises(ConfigError, match=r"(?s)'uselstm'.*'hiddens'"):
        DefaultModelConfig.from_dict({"uselstm": True, "hiddens": [1]})
