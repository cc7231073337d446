from __future__ import annotations

import ast

import pytest

from epibatch.porting.names_in_use import names_from_star, uses_of_ray


def uses(source):
    return [(use.line, use.name) for use in uses_of_ray(ast.parse(source))]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import ray\nray.init(num_cpus=2)", [(2, "ray.init")]),
        ("import ray as r\nr.get(r.put(1))", [(2, "ray.get"), (2, "ray.put")]),
        ("from ray import tune\ntune.Tuner('PPO')", [(2, "ray.tune.Tuner")]),
        ("from ray import tune as t\nt.Tuner", [(2, "ray.tune.Tuner")]),
        ("import ray.rllib.core\nray.rllib.core.Columns.OBS", [(2, "ray.rllib.core.Columns.OBS")]),
        ("from ray import rllib\nrllib.core.Columns", [(2, "ray.rllib.core.Columns")]),
        ("def f(x: 'ray.rllib.core.Columns'): pass", [(1, "ray.rllib.core.Columns")]),
        ("x = 'ray.rllib.algorithms.ppo:PPO'", [(1, "ray.rllib.algorithms.ppo:PPO")]),
        ("import ray.rllib.utils.numpy as n\nn.one_hot\nn.softmax", [(3, "ray.rllib.utils.numpy.softmax")]),
        ("from ray.rllib.core import columns\ncolumns.Columns", []),
        ("from ray.rllib.policy import policy as p\np.Policy", []),  # the import is listed
        ("ray = light()\nray.init()", []),
        ("def trace(ray): return ray.origin", []),
        ("self.ray.init()", []),
        ("import ray\ndef trace(ray): return ray.origin\nray.init()", [(3, "ray.init")]),
        ("import ray\ndef f():\n  for ray in light: ray.x\n  ray.y", []),
        ("import ray\ndef f():\n  import ray\n  ray.get(1)", [(4, "ray.get")]),
        ("import ray\nray = None\nray.get(1)", [(3, "ray.get")]),
        ("import ray\n[ray.x for ray in ray.get(1)]", [(2, "ray.get")]),
        (
            "from ray import air, tune\ntune.Tuner('PPO', run_config=air.RunConfig()).fit()",
            [(2, "ray.air.RunConfig"), (2, "ray.tune.Tuner")],
        ),
        (
            "from ray.rllib import SampleBatch as SB\nSB.CUR_OBS, SB.concat_samples, SB.PREV_ACTIONS",
            [(2, "ray.rllib.SampleBatch.CUR_OBS")],
        ),
        ('"""ray.rllib.core"""\ntext = "x-ray.y"', []),
    ],
)
def test_uses(source, found):
    assert sorted(uses(source)) == found


def reason(source):
    (use,) = uses_of_ray(ast.parse(source))
    return use.reason


def test_what_to_write_instead():
    assert reason("ray.rllib.core.Columns.OBS") == "used as an attribute: write epibatch.core.Columns.OBS"
    assert reason("from ray import tune\ntune.register_env") == (
        "used as an attribute: write epibatch.core.registry.register_env"
    )
    assert reason("x: 'ray.rllib.algorithms.ppo:PPO'") == "used in a string: write epibatch.algorithms.ppo.PPO"
    assert reason("'%s' % 'ray.rllib.core.columns'") == "used in a string: write epibatch.core.columns"
    assert reason("ray.rllib.policy.policy.Policy").startswith("old API stack")
    for key, column in (("REWARDS", "REWARDS"), ("CUR_OBS", "OBS")):
        written = f"used as an attribute: write epibatch.core.columns.Columns.{column}"
        assert reason(f"ray.rllib.policy.sample_batch.SampleBatch.{key}") == written
        assert reason(f"from ray.rllib.policy.sample_batch import SampleBatch\nSampleBatch.{key}") == written


def test_names_that_only_a_star_can_have_brought():
    source = """
from m import *
import a.b, c as d
from e import f as g
def h(i, *j, **k): return i, j, k, One
class L: pass
for m, n in o: pass
try: Two
except ValueError as p: p
print(a, d, g, h, L, m, n, __name__, __file__, One, [q for q in Three])
"""
    assert list(names_from_star(ast.parse(source))) == [(5, "One"), (7, "o"), (8, "Two"), (10, "Three")]
