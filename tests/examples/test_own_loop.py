"""The hand-written loop runs, records right episodes, and learns."""

from __future__ import annotations

import numpy as np


def test_chunks_are_whole(load_example):
    example = load_example("own_loop")
    loop = example.Loop(example.Options(steps_per_iteration=100))
    first, second = loop.collect(), loop.collect()
    loop.env.close()
    assert [sum(map(len, chunks)) for chunks in (first, second)] == [100, 100]
    assert all(chunk.is_done for chunk in first[:-1])
    assert second[0].id_ == first[-1].id_
    np.testing.assert_array_equal(second[0].get_observations(0), first[-1].get_observations(-1))
    batch = loop.learner_pipeline(rl_module=loop.module, batch={}, episodes=first)
    assert len(batch["obs"]) == 100 + len(first)
    assert int(batch["loss_mask"].sum()) == 100
