"""RolloutStorageMM: what is stored, returns, the outputs of its generators in their order, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from epibatch.core import MaskedColumn
from epibatch.core.errors import BatchLayoutError, ColumnError, ConfigError, EpibatchWarning, RolloutOverflowError
from epibatch.interop.rsl_rl import RolloutStorageMM

T, N, A = 5, 4, 3
ALL = {
    "obs_shape": [6],
    "ref_obs_shape": [2],
    "privileged_obs_shape": [7],
    "privileged_ref_obs_shape": [8],
    "actions_shape": [A],
}
ONLY_ACTOR = {**ALL, "ref_obs_shape": [None], "privileged_obs_shape": [None], "privileged_ref_obs_shape": [None]}
OUTPUTS = [
    "obs",
    "ref",
    "critic_obs",
    "critic_ref",
    "actions",
    "values",
    "advantages",
    "returns",
    "logp",
    "mu",
    "sigma",
]
OUTPUTS += ["dagger", "hidden", "masks", "rnd", "obs_prev", "ref_prev", "ref_prev_mask"]


def made(training_type="rl", num_envs=N, num_steps=T, **arguments):
    return RolloutStorageMM(training_type, num_envs, num_steps, **{**ALL, **arguments})


def transitions(num_steps=T, num_envs=N, seed=0, first=0):
    """Random steps; observations begin with (step, env), so that each row says where it is from."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(num_envs, *shape, generator=generator)

    steps = []
    for t in range(first, first + num_steps):
        step = RolloutStorageMM.Transition()
        step.observations = drawn(6)
        step.observations[:, 0], step.observations[:, 1] = t, torch.arange(num_envs)
        step.reference_observations, step.reference_observations_mask = drawn(2), drawn() > 0
        step.critic_observations = drawn(7)
        step.critic_reference_observations, step.critic_reference_observations_mask = drawn(8), drawn() > 0
        step.actions, step.privileged_actions, step.dagger_actions = drawn(A), drawn(A), drawn(A)
        step.rewards, step.dones = drawn(), drawn() > 0.8
        step.values, step.actions_log_prob = drawn(1), drawn()
        step.action_mean, step.action_sigma = drawn(A), drawn(A).exp()
        step.rnd_state = drawn(9)
        steps.append(step)
    return steps


def filled(storage, steps):
    for step in steps:
        storage.add_transitions(step)
    return storage


def stacked(steps, name):
    return torch.stack([getattr(step, name) for step in steps])


ATTRIBUTES = {  # attribute -> field of a transition, shape of a row
    "observations": ("observations", (6,)),
    "reference_observations": ("reference_observations", (2,)),
    "reference_observations_mask": ("reference_observations_mask", ()),
    "privileged_observations": ("critic_observations", (7,)),
    "privileged_reference_observations": ("critic_reference_observations", (8,)),
    "privileged_reference_observations_mask": ("critic_reference_observations_mask", ()),
    "actions": ("actions", (A,)),
    "dagger_actions": ("dagger_actions", (A,)),
    "rewards": ("rewards", (1,)),
    "dones": ("dones", (1,)),
    "values": ("values", (1,)),
    "actions_log_prob": ("actions_log_prob", (1,)),
    "mu": ("action_mean", (A,)),
    "sigma": ("action_sigma", (A,)),
    "rnd_state": ("rnd_state", (9,)),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_are_views_of_the_stored_steps(name):
    storage, steps = made(apply_dagger_actions=True, rnd_state_shape=[9]), transitions()
    field, shape = ATTRIBUTES[name]
    assert getattr(storage, name).shape == (T, N, *shape)
    address = getattr(storage, name).data_ptr()
    filled(storage, steps)
    found = getattr(storage, name)
    assert found.data_ptr() == address
    assert torch.equal(found, stacked(steps, field).reshape(T, N, *shape).to(found.dtype))
    assert found.dtype is {"dones": torch.uint8}.get(name, torch.bool if "mask" in name else torch.float32)
    setattr(storage, name, torch.zeros_like(found))
    assert not found.any()


def test_only_what_the_arguments_ask_for_is_stored():
    storage = filled(made(**ONLY_ACTOR), transitions())
    absent = {name for name in ATTRIBUTES if getattr(storage, name) is None}
    assert absent == {name for name in ATTRIBUTES if "reference" in name or name.startswith(("priv", "dagger", "rnd"))}
    assert list(storage.storage.columns["obs"]) == ["policy"]
    for shapes in ({"ref_obs_shape": [None]}, {"privileged_ref_obs_shape": None}):
        assert made(**shapes).privileged_reference_observations is None
    assert made(privileged_ref_obs_shape=None).reference_observations is not None


def test_memory_follows_the_arguments():
    sizes = {}
    for training_type in ("rl", "distillation"):
        storage = filled(made(training_type), transitions())
        if training_type == "rl":
            storage.compute_returns(torch.zeros(N), 0.99, 0.95)
        sizes[training_type] = storage.storage.nbytes
    assert sizes["rl"] - sizes["distillation"] == 4 * T * N * (4 + 2 * A) - 4 * T * N * A
    more = made(apply_dagger_actions=True, rnd_state_shape=[9]).storage.nbytes - made().storage.nbytes
    assert more == 4 * T * N * (A + 9)


def test_columns_of_the_other_training_type_are_named_errors():
    storage = made()
    with pytest.raises(KeyError, match="training_type='distillation'"):
        _ = storage.privileged_actions
    with pytest.raises(AttributeError, match="compute_returns"):
        _ = storage.returns
    with pytest.raises(AttributeError, match="arguments that ask for this column"):
        storage.rnd_state = torch.zeros(T, N, 9)
    assert not hasattr(made("distillation"), "values") and hasattr(made("distillation"), "privileged_actions")
    with pytest.raises(ValueError, match="training_type='distillation'"):
        storage.generator()
    for call in (made("distillation").mini_batch_generator, made("distillation").recurrent_mini_batch_generator):
        with pytest.raises(ValueError, match="training_type='rl'"):
            call(2)
    with pytest.raises(ValueError, match="'rl' or 'distillation'"):
        made("foo")


def test_transitions_are_copied_and_an_incomplete_one_changes_nothing():
    storage, steps = made(), transitions(T + 1)
    storage.add_transitions(steps[0])
    kept = steps[0].actions.clone()
    steps[0].actions.zero_()
    assert torch.equal(storage.actions[0], kept)
    steps[1].critic_observations = None
    with pytest.raises(ColumnError, match="step 1, critic_observations"):
        storage.add_transitions(steps[1])
    steps[1].critic_observations = torch.zeros(N, 1)
    with pytest.raises(ColumnError, match="transition, critic_observations:"):
        storage.add_transitions(steps[1])
    steps[1].critic_observations, steps[1].hidden_states = torch.zeros(N, 7), (torch.zeros(1, N, 3), None)
    with pytest.raises(ColumnError, match="transition, hidden_states:"):
        storage.add_transitions(steps[1])
    steps[1].observations, steps[1].hidden_states = {"policy": steps[1].observations}, None
    with pytest.raises(ColumnError, match=r"transition, its fields:[\s\S]*'obs' as {policy: {policy"):
        storage.add_transitions(steps[1])
    assert storage.step == 1 and not storage.actions[1:].any()
    steps[1].clear()
    assert all(value is None for value in vars(steps[1]).values())
    filled(storage, [steps[0], *steps[2:T]])
    with pytest.raises(RolloutOverflowError, match="num_steps=5"):
        storage.add_transition(steps[T])


def test_the_next_rollout_has_the_same_memory():
    storage = filled(made(), transitions())
    storage.compute_returns(torch.zeros(N), 0.99, 0.95)
    names = [*[name for name in ATTRIBUTES if getattr(storage, name) is not None], "returns", "advantages"]
    before = [getattr(storage, name).data_ptr() for name in names]
    storage.clear()
    assert storage.step == 0
    steps = transitions(seed=1)
    filled(storage, steps).compute_returns(torch.zeros(N), 0.99, 0.95)
    assert [getattr(storage, name).data_ptr() for name in names] == before
    assert torch.equal(storage.mu, stacked(steps, "action_mean"))


def slow_advantages(steps, last_values, gamma, lam):
    """GAE of one environment after the other, in float64."""
    out = np.zeros((len(steps), N))
    for n in range(N):
        advantage, following = 0.0, float(last_values[n])
        for t in reversed(range(len(steps))):
            goes_on = not bool(steps[t].dones[n])
            value = float(steps[t].values[n])
            delta = float(steps[t].rewards[n]) + gamma * following * goes_on - value
            out[t, n] = advantage = delta + gamma * lam * goes_on * advantage
            following = value
    return out


@pytest.mark.parametrize("seed", range(4))
def test_returns_are_those_of_a_loop_in_float64(seed):
    steps, last = transitions(seed=seed), torch.randn(N, 1, generator=torch.Generator().manual_seed(seed))
    storage = filled(made(), steps)
    storage.compute_returns(last, 0.99, 0.95, normalize_advantage=False)
    expected = slow_advantages(steps, last, 0.99, 0.95)
    assert storage.advantages.shape == storage.returns.shape == (T, N, 1)
    np.testing.assert_allclose(storage.advantages[..., 0], expected, atol=1e-5)
    np.testing.assert_allclose(storage.returns[..., 0], expected + stacked(steps, "values").numpy()[..., 0], atol=1e-5)
    storage.compute_returns(last, gamma=0.99, lam=0.95)
    scaled = (expected - expected.mean()) / (expected.std(ddof=1) + 1e-8)
    np.testing.assert_allclose(storage.advantages[..., 0], scaled, atol=1e-5)
    assert abs(float(storage.advantages.mean())) < 1e-6
    assert float(storage.advantages.std()) == pytest.approx(1.0, abs=1e-5)


def test_the_advantage_of_a_single_row_is_zero_if_normalized():
    storage = RolloutStorageMM("rl", 1, 1, [3], None, None, None, [2])
    row = {"observations": torch.zeros(1, 3), "actions": torch.zeros(1, 2), "dones": torch.zeros(1)}
    row |= {name: torch.ones(1) for name in ("rewards", "values", "actions_log_prob")}
    row |= {name: torch.ones(1, 2) for name in ("action_mean", "action_sigma")}
    storage.add_transitions(RolloutStorageMM.Transition(**row))
    storage.compute_returns(torch.zeros(1), 0.99, 0.95)
    assert storage.advantages.tolist() == [[[0.0]]]


def named(batch):
    return dict(zip(OUTPUTS, batch, strict=True))


def columns_of(storage, steps):
    """Flat columns, by the names of outputs."""
    fields = {"obs": "observations", "critic_obs": "critic_observations", "actions": "actions", "mu": "action_mean"}
    fields |= {"values": "values", "logp": "actions_log_prob", "sigma": "action_sigma", "dagger": "dagger_actions"}
    flat = {name: stacked(steps, field).flatten(0, 1) for name, field in fields.items()}
    flat |= {"advantages": storage.advantages.flatten(0, 1), "returns": storage.returns.flatten(0, 1)}
    flat |= {"rnd": stacked(steps, "rnd_state").flatten(0, 1), "logp": flat["logp"].unsqueeze(-1)}
    for name, field in (("ref", "reference_observations"), ("critic_ref", "critic_reference_observations")):
        flat[name] = stacked(steps, field).flatten(0, 1)
        flat[f"{name}_mask"] = stacked(steps, f"{field}_mask").flatten()
    return flat


def test_minibatches_have_eighteen_outputs_in_their_order_and_rows_of_all_go_together():
    steps = transitions()
    storage = filled(made(apply_dagger_actions=True, rnd_state_shape=[9]), steps)
    storage.compute_returns(torch.zeros(N), 0.99, 0.95)
    expected = columns_of(storage, steps)
    batches = [named(batch) for batch in storage.mini_batch_generator(4, num_epochs=2)]
    assert len(batches) == 8 and all(len(batch["actions"]) == T * N // 4 for batch in batches)
    for epoch in (batches[:4], batches[4:]):
        rows = [(int(t) * N + int(n)) for batch in epoch for t, n in batch["obs"][:, :2]]
        assert sorted(rows) == list(range(T * N)) != rows
    for batch in batches:
        rows = (batch["obs"][:, 0] * N + batch["obs"][:, 1]).long()
        for name in ("ref", "critic_ref"):
            value, mask = batch[name]
            assert torch.equal(value, expected[name][rows]) and torch.equal(mask, expected[f"{name}_mask"][rows])
        for name in expected.keys() & set(OUTPUTS) - {"ref", "critic_ref"}:
            assert torch.equal(batch[name], expected[name][rows]), name
        assert batch["hidden"] == (None, None) and batch["masks"] is None
        assert [batch[name] for name in OUTPUTS[-3:]] == [None, None, None]


def test_minibatches_are_those_of_one_permutation():
    steps = transitions()
    storage = filled(made(), steps)
    storage.compute_returns(torch.zeros(N), 0.99, 0.95)
    torch.manual_seed(7)
    batches = [named(batch) for batch in storage.mini_batch_generator(4, num_epochs=3)]
    torch.manual_seed(7)
    parts = torch.randperm(T * N).reshape(4, 5)
    for batch, rows in zip(batches, [*parts] * 3, strict=True):
        assert torch.equal(batch["actions"], storage.actions.flatten(0, 1)[rows])


def test_outputs_without_their_configuration():
    storage = filled(made(**ONLY_ACTOR), transitions())
    storage.compute_returns(torch.zeros(N), 0.99, 0.95)
    for batch in map(named, storage.mini_batch_generator(2, num_epochs=1)):
        assert batch["critic_obs"] is batch["obs"]
        assert all(batch[name] is None for name in ("ref", "critic_ref", "dagger", "rnd", "masks", *OUTPUTS[-3:]))


@pytest.mark.parametrize(("number", "size"), [(3, 6), (8, 2), (20, 1)])
def test_rows_left_over_are_dropped_with_one_warning(number, size):
    storage = filled(made(), transitions())
    storage.compute_returns(torch.zeros(N), 0.99, 0.95)

    def sizes():
        return [len(batch[0]) for batch in storage.mini_batch_generator(number, num_epochs=2)]

    if T * N % number:
        with pytest.warns(EpibatchWarning, match=f"{T * N % number} rows are left out"):
            assert sizes() == [size] * number * 2
    assert sizes() == [size] * number * 2


def test_minibatches_need_returns_of_the_newest_step():
    storage, steps = made(), transitions()
    filled(storage, steps[:-1])
    storage.compute_returns(torch.zeros(N), 0.99, 0.95)
    assert len(list(storage.mini_batch_generator(4, num_epochs=1))) == 4
    storage.add_transitions(steps[-1])
    with pytest.raises(BatchLayoutError, match="compute_returns"):
        storage.mini_batch_generator(4)


def first_two(obs):
    return obs[:, :2]


def doubled(reference):
    values, mask = reference
    return values * 2, mask


AMP = {"amp_obs_extractor": first_two, "amp_ref_obs_extractor": doubled, "amp_coef": 0.1}


@pytest.mark.parametrize("seed", range(3))
def test_previous_states_are_of_the_same_episode_and_environment(seed):
    storage, before = made(amp_cfg=AMP), None
    for rollout in range(2):
        storage.clear()
        steps = transitions(seed=seed + 10 * rollout, first=rollout * T)
        filled(storage, steps).compute_returns(torch.zeros(N), 0.99, 0.95)
        seen = 0
        for batch in map(named, storage.mini_batch_generator(2, num_epochs=1)):
            for i, (t, n) in enumerate(batch["obs"][:, :2].long().tolist()):
                own = steps[t - rollout * T]
                previous = steps[t - rollout * T - 1] if t > rollout * T else before
                begins = previous is None or bool(previous.dones[n])
                source = own if begins else previous
                assert batch["obs_prev"][i].tolist() == [t if begins else t - 1, n]
                assert torch.equal(batch["ref_prev"][i], source.reference_observations[n] * 2)
                assert bool(batch["ref_prev_mask"][i]) == (not begins and bool(source.reference_observations_mask[n]))
                seen += 1
        assert seen == T * N
        before = steps[-1]


def test_extractors_by_import_path_and_wrong_ones():
    by_path = {name: f"{__name__}:{AMP[name].__name__}" for name in list(AMP)[:2]}
    outputs = []
    for amp_cfg in (AMP, by_path):
        storage = filled(made(amp_cfg=amp_cfg), transitions())
        storage.compute_returns(torch.zeros(N), 0.99, 0.95)
        torch.manual_seed(0)
        outputs.append([batch[-3:] for batch in storage.mini_batch_generator(2, num_epochs=1)])
    for left, right in zip(*outputs, strict=True):
        assert all(map(torch.equal, left, right))
    with pytest.raises(ConfigError, match="only 'amp_obs_extractor', 'amp_ref_extractor'"):
        made(amp_cfg={"amp_obs_extractor": first_two, "amp_ref_extractor": doubled})
    with pytest.raises(ValueError, match="no_such_name"):
        made(amp_cfg={**AMP, "amp_obs_extractor": f"{__name__}:no_such_name"})
    storage = filled(made(amp_cfg={**AMP, "amp_obs_extractor": torch.mean}), transitions())
    storage.compute_returns(torch.zeros(N), 0.99, 0.95)
    with pytest.raises(ColumnError, match="20 rows"):
        storage.mini_batch_generator(2)
    storage = filled(made(amp_cfg={**AMP, "amp_ref_obs_extractor": lambda pair: pair[0]}), transitions())
    storage.compute_returns(torch.zeros(N), 0.99, 0.95)
    with pytest.raises(ColumnError, match=r"a pair \(reference, mask\)\n.*Tensor"):
        storage.mini_batch_generator(2)
    none = filled(made(amp_cfg=AMP, **ONLY_ACTOR), transitions())
    none.compute_returns(torch.zeros(N), 0.99, 0.95)
    assert next(none.mini_batch_generator(2))[-3:] == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"obs_shape": [None]}, "shape of observations"),
        ({"actions_shape": None}, "shape of actions"),
        ({"privileged_obs_shape": ["a"]}, "shape of critic_observations"),
        ({"amp_cfg": 5}, "amp_cfg"),
    ],
)
def test_arguments_that_are_none_of_the_documented_ones_are_named(arguments, said):
    with pytest.raises(ConfigError, match=said):
        made(**arguments)


def test_shapes_may_be_numbers_and_those_of_random_network_distillation_a_none():
    assert made(obs_shape=6).observations.shape == (T, N, 6)
    assert made(rnd_state_shape=[None]).rnd_state is None


def test_hidden_states_that_are_no_pair_are_named():
    (step,), storage = transitions(1), made()
    step.hidden_states = torch.zeros(1, N, 2)
    with pytest.raises(ColumnError, match="step 0, hidden_states"):
        storage.add_transitions(step)
    assert storage.step == 0


def test_a_first_transition_that_is_refused_leaves_no_room_for_its_hidden_states():
    (step,), storage = transitions(1), made()
    before, step.hidden_states, observations = storage.storage.nbytes, (torch.zeros(1, N, 2), None), step.observations
    step.observations = torch.zeros(N, 7)
    with pytest.raises(ColumnError, match="step 0"):
        storage.add_transitions(step)
    assert storage.storage.nbytes == before
    step.hidden_states, step.observations = None, observations
    storage.add_transitions(step)
    assert storage.step == 1


@pytest.mark.parametrize("privileged", [True, False])
def test_distillation_goes_through_the_steps_in_the_order_of_time(privileged):
    steps = transitions()
    storage = filled(made("distillation", **({} if privileged else ONLY_ACTOR)), steps)
    batches = list(storage.generator())
    assert len(batches) == T
    for step, (obs, teacher_obs, ref, teacher_ref, actions, teacher_actions, dones) in zip(steps, batches, strict=True):
        assert torch.equal(obs, step.observations) and torch.equal(actions, step.actions)
        assert torch.equal(teacher_obs, step.critic_observations if privileged else step.observations)
        assert torch.equal(teacher_actions, step.privileged_actions)
        assert dones.dtype is torch.uint8 and torch.equal(dones[:, 0].bool(), step.dones)
        if privileged:
            assert torch.equal(ref[0], step.reference_observations)
            assert torch.equal(ref[1], step.reference_observations_mask)
            assert torch.equal(teacher_ref[0], step.critic_reference_observations)
        else:
            assert ref is None and teacher_ref is None


def test_random_and_sequential_reads_are_of_one_memory():
    steps = transitions()
    storage = filled(made("distillation"), steps)
    ordered = torch.cat([batch[5] for batch in storage.generator()])
    drawn = [
        (minibatch["obs"]["policy"], minibatch["teacher_actions"]) for minibatch in storage.storage.minibatches(size=3)
    ]
    rows = torch.cat([obs[:, 0] * N + obs[:, 1] for obs, _ in drawn]).long()
    assert torch.equal(torch.cat([actions for _, actions in drawn]), ordered[rows])
    assert next(storage.generator())[5].data_ptr() == storage.privileged_actions.data_ptr()


def test_statistics_count_the_unfinished_trajectory_of_each_environment():
    storage, steps = made(num_envs=2), transitions(num_envs=2)
    dones = [[0, 0], [1, 0], [0, 0], [1, 0], [0, 0]]  # trajectories of 2, 2 and 1 steps, and one of 5
    for step, flags in zip(steps, dones, strict=True):
        step.dones = torch.tensor(flags)
    lengths, reward = filled(storage, steps).get_statistics()
    assert float(lengths) == np.mean([2, 2, 1, 5])
    assert float(reward) == pytest.approx(float(stacked(steps, "rewards").mean()))
    assert storage.dones[..., 0].tolist() == dones
    steps[-1].dones = torch.ones(2)
    storage.clear()
    assert float(filled(storage, steps).get_statistics()[0]) == np.mean([2, 2, 1, 5])


def states(seed):
    """States of a GRU for the actor and of an LSTM for the critic, [layers, N, size]."""
    generator = torch.Generator().manual_seed(seed)
    actor, hidden, cell = (torch.randn(2, N, size, generator=generator) for size in (3, 4, 4))
    return actor, (hidden, cell)


@pytest.mark.parametrize("networks", ["both", "actor"])
def test_trajectories_begin_with_the_stored_hidden_states(networks):
    steps, storage = transitions(seed=2), made(amp_cfg=AMP)
    for t, step in enumerate(steps):
        step.hidden_states = states(t) if networks == "both" else (states(t)[0], None)
    filled(storage, steps).compute_returns(torch.zeros(N), 0.99, 0.95)
    assert next(storage.mini_batch_generator(4))[12] == (None, None)
    seen = []
    for batch in map(named, storage.recurrent_mini_batch_generator(2, num_epochs=1)):
        masks, (actor, critic) = batch["masks"], batch["hidden"]
        assert batch["obs"].shape[:2] == masks.shape == batch["ref"][1].shape and masks.dtype is torch.bool
        for s in range(masks.shape[1]):
            rows = batch["obs"][masks[:, s], s, :2].long().tolist()
            t, n = rows[0]
            assert rows == [[t + i, n] for i in range(len(rows))]
            assert t == 0 or steps[t - 1].dones[n]
            assert batch["obs_prev"][: len(rows), s].tolist() == [rows[0], *rows[:-1]]
            assert not batch["ref_prev_mask"][0, s]
            assert torch.equal(actor[:, s], steps[t].hidden_states[0][:, n])
            assert torch.equal(batch["advantages"][masks[:, s], s, 0], storage.advantages[t : t + len(rows), n, 0])
            if networks == "both":
                assert all(torch.equal(critic[i][:, s], steps[t].hidden_states[1][i][:, n]) for i in range(2))
            else:
                assert critic is None
            seen += rows
    assert sorted(seen) == [[t, n] for t in range(T) for n in range(N)]
    steps[0].hidden_states = None
    storage.clear()
    with pytest.raises(ColumnError, match="no 'state_in'"):
        storage.add_transitions(steps[0])
    without = filled(made(), transitions())
    without.compute_returns(torch.zeros(N), 0.99, 0.95)
    with pytest.raises(BatchLayoutError, match="state_in"):
        without.recurrent_mini_batch_generator(2)


def test_a_loop_that_acts_in_inference_mode_can_learn_from_its_rollout():
    storage = made(privileged_ref_obs_shape=None)
    weight = torch.ones(6, requires_grad=True)
    for _ in range(2):
        with torch.inference_mode():
            for step in transitions():
                step.hidden_states = (torch.zeros(1, N, 2), None)
                storage.add_transitions(step)
            storage.compute_returns(torch.zeros(N), 0.99, 0.95)
        for batch in map(named, storage.mini_batch_generator(2, num_epochs=1)):
            ((batch["obs"] @ weight) * batch["advantages"][:, 0]).mean().backward()
        storage.clear()
    steps = transitions()
    steps[0].values.requires_grad_()
    steps[0].hidden_states = (torch.zeros(1, N, 2), None)
    filled(storage, steps[:1]).compute_returns(torch.ones(N, requires_grad=True), 0.99, 0.95)
    assert not storage.values.requires_grad and not storage.returns.requires_grad


def test_the_printed_usage():
    """The usage that its documentation shows, with 1/128 of the environments."""
    num_envs, device = 32, "cpu"
    storage = RolloutStorageMM(
        training_type="rl",
        num_envs=num_envs,
        num_transitions_per_env=24,
        obs_shape=[48],
        ref_obs_shape=[26],
        privileged_obs_shape=[48],
        privileged_ref_obs_shape=[26],
        actions_shape=[19],
        apply_dagger_actions=True,
        rnd_state_shape=[48],
        device=device,
    )
    transition = RolloutStorageMM.Transition()
    passes = 0
    for _ in range(2):
        for _ in range(24):
            transition.observations = torch.randn(num_envs, 48, device=device)
            transition.reference_observations = torch.randn(num_envs, 26, device=device)
            transition.reference_observations_mask = torch.rand(num_envs, device=device) < 0.5
            transition.critic_observations = torch.randn(num_envs, 48, device=device)
            transition.critic_reference_observations = torch.randn(num_envs, 26, device=device)
            transition.critic_reference_observations_mask = torch.rand(num_envs, device=device) < 0.5
            transition.actions = torch.randn(num_envs, 19, device=device)
            transition.dagger_actions = torch.randn(num_envs, 19, device=device)
            transition.rewards = torch.randn(num_envs, device=device)
            transition.dones = (torch.rand(num_envs, device=device) < 0.1).long()
            transition.values = torch.randn(num_envs, 1, device=device)
            transition.actions_log_prob = torch.randn(num_envs, device=device)
            transition.action_mean = torch.randn(num_envs, 19, device=device)
            transition.action_sigma = torch.rand(num_envs, 19, device=device)
            transition.rnd_state = torch.randn(num_envs, 48, device=device)
            storage.add_transitions(transition)
            transition.clear()
        last_values = torch.randn(num_envs, 1, device=device)
        storage.compute_returns(last_values, gamma=0.99, lam=0.95)
        for _epoch in range(5):
            for batch_data in storage.mini_batch_generator(num_mini_batches=4):
                obs_batch, ref_obs_batch, critic_obs_batch, critic_ref_obs_batch, \
                actions_batch, values_batch, advantages_batch, returns_batch, \
                old_log_prob_batch, old_mu_batch, old_sigma_batch, dagger_actions_batch, \
                hidden_states, masks, rnd_state_batch, \
                obs_prev_state, ref_obs_prev_state, ref_obs_prev_mask = batch_data  # fmt: skip
                assert obs_batch.shape == critic_obs_batch.shape == rnd_state_batch.shape == (24 * num_envs // 4, 48)
                assert ref_obs_batch[0].shape == critic_ref_obs_batch[0].shape == (24 * num_envs // 4, 26)
                assert isinstance(ref_obs_batch, MaskedColumn)
                for numbers in (values_batch, advantages_batch, returns_batch, old_log_prob_batch):
                    assert numbers.shape == (24 * num_envs // 4, 1)
                for rows in (actions_batch, old_mu_batch, old_sigma_batch, dagger_actions_batch):
                    assert rows.shape == (24 * num_envs // 4, 19)
                assert (hidden_states, masks) == ((None, None), None)
                assert obs_prev_state is ref_obs_prev_state is ref_obs_prev_mask is None
                passes += 1
        storage.clear()
    assert passes == 2 * 5 * 8 * 4 and math.isfinite(float(advantages_batch.sum()))
