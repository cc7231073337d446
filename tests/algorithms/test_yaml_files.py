"""YAML means what it looks like, or is refused with its place."""

from __future__ import annotations

import pytest

from epibatch.algorithms.config_io import read_yaml, to_yaml_text, yaml_name
from epibatch.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E3", 1000.0),
        ("2.5e2", 250.0),
        ("-1e2", -100.0),
        ("1e", "1e"),
        ("12", 12),
        (".inf", float("inf")),
        (".5", 0.5),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("0x10", 16),
        ("0b11", 3),
        ("0", 0),
        ("-7", -7),
        ("True", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("'no'", "no"),
        ('"010"', "010"),
        ("norm", "norm"),
        ("0o17", 15),
        ("no", "no"),
        ("On", "On"),
        ("010", 10),
        ("1:30", "1:30"),
    ],
)
def test_numbers_as_yaml_1_2_reads_them(text, value):
    found = read_yaml(f"x: {text}\n")["x"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!int ten", "invalid literal"),
        ("!!timestamp ten", "failed to construct timestamp"),
        ("!!python/name:os.system", "could not determine a constructor"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("!!python/tuple [1]", "could not determine a constructor"),
        ("!own 3", "could not determine a constructor"),
        ("{a: 1, a: 2}", 'found duplicate key "a"'),
        ("{? {a: 1} : 2}", "found unhashable key"),
        ("*other", "undefined alias"),
        ("&a [*a]", "found an alias of the value itself"),
    ],
)
def test_what_yaml_might_misread_is_refused_with_its_place(text, message):
    with pytest.raises(ConfigError) as caught:
        read_yaml(f"first: 1\nx: {text}\n")
    found = str(caught.value)
    assert message in found
    assert found.startswith("YAML text") and "expected: YAML" in found and "do:" in found
    if "place" not in message and "literal" not in message:
        assert found.startswith("YAML text, line 2, column ")


@pytest.mark.parametrize("text", ["training:\n\tlr: 1", "a: 1\x00", "\x00", "--- {}\n--- {}", "{" * 5000])
def test_text_that_is_no_yaml(text):
    with pytest.raises(ConfigError, match="YAML text"):
        read_yaml(text)


@pytest.mark.parametrize("text", ["x" * 2000 + ".yaml", "a\0b.yaml"])
def test_paths_that_cannot_be_read(text):
    with pytest.raises(ConfigError, match="a readable YAML file"):
        read_yaml(text)


@pytest.mark.parametrize(
    "value", ["no", "010", "1:30", "1e3", "0.5", "null", "", 1e-5, 1e300, True, None, [1, {"a": 2}]]
)
def test_what_is_written_is_read_back(value):
    found = read_yaml(to_yaml_text({"x": value}))["x"]
    assert found == value and type(found) is type(value)


def test_names_of_sources(tmp_path):
    assert yaml_name("a: 1") == "YAML text"
    assert yaml_name("a.yaml") == "a.yaml"
    assert yaml_name(tmp_path) == str(tmp_path)
