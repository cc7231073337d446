"""CartPole from YAML runs for one iteration."""

from __future__ import annotations


def test_one_iteration(load_example, capsys):
    example = load_example("cartpole_ppo")
    mean = example.main(example.parse(["--iterations", "1"]))
    assert mean > 8
    out = capsys.readouterr().out
    assert out.startswith("iteration   1")
    assert 2048 <= int(out.split()[2]) < 2048 + 8


def test_it_stops_at_the_goal(load_example, capsys):
    example = load_example("cartpole_ppo")
    assert example.main(example.Options(iterations=3, goal=9.0)) >= 9
    assert "iteration   2" not in capsys.readouterr().out
