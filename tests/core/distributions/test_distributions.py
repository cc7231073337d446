"""Action distributions: against torch.distributions, their draws, and what they refuse."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from epibatch.core.distributions import (
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    MultiDistribution,
    SquashedGaussian,
    distribution_for,
    mask_logits,
)
from epibatch.core.errors import ColumnError, ConfigError, NotAvailableError, SpaceError

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
NESTED = gym.spaces.Dict({"turn": Discrete(3), "move": gym.spaces.Tuple([Box(-1, 1, (2,)), Discrete(2)])})


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def inputs(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# ------------------------------------------------------------------------- against torch.distributions


def choice(logits):
    return torch.distributions.Categorical(logits=logits)


def gaussian(logits):
    mean, log_std = logits.chunk(2, -1)
    return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)


def squashed(logits, low, high):
    mean = logits.chunk(2, -1)[0]
    low, high = (torch.as_tensor(bound, dtype=mean.dtype).expand(mean.shape[-1]) for bound in (low, high))
    steps = [
        torch.distributions.TanhTransform(cache_size=1),
        torch.distributions.AffineTransform((low + high) / 2, (high - low) / 2, cache_size=1, event_dim=1),
    ]
    return torch.distributions.TransformedDistribution(gaussian(logits), steps)


def choices(lens, start):
    def parts(logits):
        pairs = zip(torch.split(logits, lens, -1), start)
        return [
            (choice(own), lambda value, i=i, first=first: value.flatten(value.dim() - 1)[..., i] - first)
            for i, (own, first) in enumerate(pairs)
        ]

    return parts


def nested(logits):
    return [
        (gaussian(logits[..., :4]), lambda value: value["move"][0]),
        (choice(logits[..., 4:6]), lambda value: value["move"][1]),
        (choice(logits[..., 6:]), lambda value: value["turn"]),
    ]


def plain(value):
    return value


WIDE = (np.array([-2.0, 0.0]), np.array([4.0, 0.1]))
SMALL = {"start": [3, 0], "dtype": torch.int8}
FAMILIES = {
    "categorical": (3, Categorical.from_logits, lambda x: [(choice(x), plain)]),
    "categorical from 5": (
        3,
        lambda x: Categorical.from_logits(x, start=5, dtype=torch.int16),
        lambda x: [(choice(x), lambda value: value - 5)],
    ),
    "gaussian": (4, DiagGaussian.from_logits, lambda x: [(gaussian(x), plain)]),
    "number": (2, lambda x: DiagGaussian.from_logits(x, shape=()), lambda x: [(gaussian(x), lambda v: v[..., None])]),
    "matrix": (
        12,
        lambda x: DiagGaussian.from_logits(x, shape=(2, 3)),
        lambda x: [(gaussian(x), lambda value: value.flatten(-2))],
    ),
    "squashed": (4, SquashedGaussian.from_logits, lambda x: [(squashed(x, -1.0, 1.0), plain)]),
    "squashed to bounds": (
        4,
        lambda x: SquashedGaussian.from_logits(x, low=WIDE[0], high=WIDE[1]),
        lambda x: [(squashed(x, *WIDE), plain)],
    ),
    "squashed matrix": (
        12,
        lambda x: SquashedGaussian.from_logits(x, low=-2.0, high=4.0, shape=(2, 3)),
        lambda x: [(squashed(x, -2.0, 4.0), lambda value: value.flatten(-2))],
    ),
    "one choice": (1, lambda x: MultiCategorical.from_logits(x, [1]), choices([1], [0])),
    "equal choices": (6, lambda x: MultiCategorical.from_logits(x, [3, 3]), choices([3, 3], [0, 0])),
    "choices": (7, lambda x: MultiCategorical.from_logits(x, [2, 5], **SMALL), choices([2, 5], [3, 0])),
    "nested": (9, lambda x: distribution_for(NESTED).from_logits(x), nested),
}


def inputs_for(family, *lead, seed=0):
    """Inputs for a batch; those of squashed ones are small, as an action close to a bound tells little."""
    scale = 0.3 if "squashed" in family else 1.0
    return scale * inputs(*lead, FAMILIES[family][0], seed=seed)


@pytest.mark.parametrize("lead", [(), (5,), (4, 3)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_what_torch_has(family, lead):
    _, build, reference = FAMILIES[family]
    ours, theirs = (inputs_for(family, *lead).requires_grad_() for _ in range(2))
    base = inputs_for(family, *lead, seed=1)
    dist, parts = build(ours), reference(theirs)
    with torch.no_grad():  # what is kept of it has no gradients, which what comes later needs
        dist.sample(sample_shape=2000)
    drawn = dist.sample(sample_shape=(2, 3), generator=seeded(2))
    logp = sum(part.log_prob(own(drawn)) for part, own in parts)
    assert logp.shape == (2, 3, *lead)
    torch.testing.assert_close(dist.logp(drawn), logp)
    if "squashed" in family:  # torch has neither: the divergence is that before squashing, the entropy has a test below
        entropies = (0.0, 0.0)
        divergence = torch.distributions.kl_divergence(gaussian(theirs), gaussian(base))
    else:
        entropies = (dist.entropy(), sum(part.entropy() for part, _ in parts))
        torch.testing.assert_close(*entropies)
        pairs = zip(parts, reference(base))
        divergence = sum(torch.distributions.kl_divergence(mine, other) for (mine, _), (other, _) in pairs)
    torch.testing.assert_close(dist.kl(build(base)), divergence)
    (dist.logp(drawn).sum((0, 1)) + entropies[0] + dist.kl(build(base))).sum().backward()
    (logp.sum((0, 1)) + entropies[1] + divergence).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_repeat_and_the_likeliest_action_is_among_them(family):
    width, build, _ = FAMILIES[family]
    dist = build(inputs_for(family, 8))
    (one, logp), two, three = (
        dist.sample_and_logp(generator=seeded(7)),
        dist.sample(generator=seeded(7)),
        dist.sample(generator=seeded(8)),
    )
    assert str(one) == str(two)
    assert width == 1 or str(one) != str(three)
    torch.testing.assert_close(logp, dist.logp(two))
    torch.manual_seed(4)
    first = dist.sample()
    torch.manual_seed(4)
    assert str(first) == str(dist.sample())
    greedy = dist.to_deterministic()
    best = greedy.sample()
    assert greedy.logp(best).tolist() == [0.0] * 8
    if "squashed" in family:  # the median
        near = [dist.base.mean + step for step in (-1e-3, 1e-3)]
        below, above = (dist.to_deterministic().sample() - build(torch.cat([m, dist.base.log_std], -1))
                        .to_deterministic().sample() for m in near)  # fmt: skip
        assert (below > 0).all() and (above < 0).all()
    else:
        draws = dist.sample(sample_shape=200, generator=seeded(1))
        assert (dist.logp(best) >= dist.logp(draws)).all()


@pytest.mark.parametrize("start", [0, 5])
def test_integers_outside_have_no_probability(start):
    logits = torch.zeros(3, 2, requires_grad=True)
    if start:
        logp = Categorical.from_logits(logits, start=start).logp(torch.tensor([[4, 5, 7]]))[0]
        assert (logp == -torch.inf).tolist() == [True, False, True]
        logp[1].backward()
        assert logits.grad.isfinite().all()
    dist = MultiCategorical.from_logits(torch.zeros(2, 5), [2, 3], start=[start, 0] if start else None)
    assert (dist.logp(torch.tensor([[start + 2, 0], [start, 2]])) == -torch.inf).tolist() == [True, False]


# ---------------------------------------------------------------------------------------------- draws

PROBS = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05, 0.0])


def drawn_categories(rows, draws):
    return Categorical.from_logits(PROBS.log().expand(rows, 6) - 2.0).sample(sample_shape=draws, generator=seeded(5))


def drawn_pairs(rows, draws):
    """Pairs of independent choices, the pair's number counted so that PROBS are theirs."""
    first, second = torch.tensor([0.7, 0.3]).log(), torch.tensor([0.5, 0.1, 0.4]).log()
    dist = MultiCategorical.from_logits(torch.cat([first, second]).expand(rows, 5), [2, 3])
    drawn = dist.sample(sample_shape=draws, generator=seeded(3))
    return drawn[..., 0] * 3 + drawn[..., 1]


@pytest.mark.parametrize(
    ("draw", "probs"),
    [
        (drawn_categories, PROBS),
        (drawn_pairs, (torch.tensor([[0.7], [0.3]]) * torch.tensor([0.5, 0.1, 0.4])).flatten()),
    ],
)
@pytest.mark.parametrize(("rows", "draws"), [(80, 1), (1, 64000), (640, 100)])  # few are raced, many inverted
def test_draws_are_distributed_right(draw, probs, rows, draws):
    """Pearson's chi-square against the 99.9 % quantile for 5 degrees of freedom, 20.52."""
    found = torch.cat([draw(rows, draws).flatten() for _ in range(max(1, 64000 // (rows * draws)) if draws > 1 else 1)])
    counts, possible = torch.bincount(found, minlength=6), probs > 0
    assert not counts[~possible].any()
    expected = probs[possible].double() * len(found)
    assert ((counts[possible] - expected).square() / expected).sum() < 20.52


@pytest.mark.parametrize("rows", [80, 800])
def test_neighbouring_rows_are_independent(rows):
    generator, dist = seeded(5), Categorical.from_logits(PROBS.log().expand(rows, 6))
    draws = torch.cat([dist.sample(generator=generator) for _ in range(40000 // rows)])
    both = (draws == 0).reshape(-1, 2).all(1).double().mean().item()
    assert both == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 20000))


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("scale", [0.0, 40.0, -3e4])
def test_an_impossible_choice_is_not_drawn_whatever_the_random_number(monkeypatch, number, scale):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, number, dtype=torch.float64))
    logits = torch.full((300, 4), -torch.inf)
    possible = torch.randint(0, 4, (300, 2), generator=seeded(1))
    logits.scatter_(1, possible, torch.tensor([0.3, 0.9]).expand(300, 2) + scale)
    drawn = Categorical.from_logits(logits).sample()
    assert logits.gather(1, drawn[:, None]).isfinite().all()
    if number == 0.0:
        assert torch.equal(drawn, possible.amin(1))


def test_many_draws_have_the_choices_of_their_own_row():
    """Each row has one possible choice, and leading dimensions of samples come first."""
    certain = torch.arange(200) % 5
    logits = torch.full((200, 5), -torch.inf).scatter_(1, certain[:, None], 2.0)
    dist = Categorical.from_logits(logits.reshape(20, 10, 5), start=7, dtype=torch.int32)
    expected = certain.reshape(20, 10).int() + 7
    for drawn in (dist.sample(), dist.sample(sample_shape=(2, 3)), dist.to_deterministic().sample()):
        assert drawn.dtype is torch.int32
        assert torch.equal(drawn, expected.expand(drawn.shape))


def test_draws_of_gaussians_have_the_right_shares():
    """The share of draws below a point, within 4 standard errors."""
    for dist, to_normal in (
        (DiagGaussian.from_logits(torch.tensor([[0.3, -0.2]])), plain),
        (
            SquashedGaussian.from_logits(torch.tensor([[0.3, -0.2]]), low=-2.0, high=6.0),
            lambda point: np.arctanh((point - 2.0) / 4.0),
        ),
    ):
        drawn = dist.sample(sample_shape=40000, generator=seeded(2)).numpy().ravel()
        for point in (-1.0, 1.0, 3.0, 5.0):
            expected = stats.norm(0.3, np.exp(-0.2)).cdf(to_normal(point))
            assert (drawn < point).mean() == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 40000))


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_flow_through_rsample_only(family):
    width, build, _ = FAMILIES[family]
    logits = torch.zeros(3, width, requires_grad=True)
    dist = build(logits)
    drawn, _ = dist.sample_and_logp()
    leaves = [drawn["turn"], *drawn["move"]] if family == "nested" else [drawn]
    assert not any(leaf.requires_grad for leaf in leaves)
    if not isinstance(dist, (DiagGaussian, SquashedGaussian)):
        with pytest.raises(NotAvailableError, match="Categorical"):
            dist.rsample()
        return
    drawn, logp = dist.rsample_and_logp()
    (drawn.sum() + logp.sum()).backward()
    assert logits.grad.abs().sum(0).all()


def test_nested_gaussians_are_drawn_with_gradients():
    logits = torch.zeros(3, 6, requires_grad=True)
    space = gym.spaces.Tuple([Box(-1, 1, (2,)), Box(-1, 1, (1,))])
    drawn, logp = distribution_for(space).from_logits(logits).rsample_and_logp()
    (drawn[0].sum() + drawn[1].sum() + logp.sum()).backward()
    assert (logits.grad[:, [0, 1, 4]] != 0).all()


# --------------------------------------------------------------------------------------------- masked


@st.composite
def masked(draw):
    """Logits, other logits, and a mask with a choice left."""
    size = draw(st.integers(1, 6))
    numbers = st.lists(st.floats(-8, 8, width=32), min_size=size, max_size=size)
    mask = draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    return draw(numbers), draw(numbers), mask


@settings(max_examples=50, deadline=None)
@given(masked(), st.sampled_from([None, -math.inf, -1e9]))
def test_masked_logits_are_the_smaller_distribution(case, lowest):
    first, second, mask = case
    legal = torch.tensor(mask)

    def mask_out(logits):
        return mask_logits(logits, legal[None]) if lowest is None else logits.where(legal, lowest)

    whole = [Categorical.from_logits(mask_out(torch.tensor([x]))) for x in (first, second)]
    small = [Categorical.from_logits(torch.tensor([x])[:, legal]) for x in (first, second)]
    assert (whole[0].probs[0][~legal] == 0).all()
    torch.testing.assert_close(whole[0].probs[0][legal], small[0].probs[0])
    torch.testing.assert_close(whole[0].entropy(), small[0].entropy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole[0].kl(whole[1]), small[0].kl(small[1]), rtol=1e-4, atol=1e-5)
    places = legal.nonzero()[:, 0]
    for i, place in enumerate(places):
        torch.testing.assert_close(whole[0].logp(place[None]), small[0].logp(torch.tensor([i])))
    assert whole[0].to_deterministic().sample()[0] == places[small[0].to_deterministic().sample()[0]]


def test_no_gradient_reaches_illegal_choices_and_none_is_nan():
    logits = torch.randn(4, 3, requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1], [0, 0, 1]])
    policy = Categorical.from_logits(mask_logits(logits, mask))
    base = Categorical.from_logits(mask_logits(torch.zeros(4, 3), mask))
    (policy.logp(torch.tensor([0, 1, 2, 2])) + policy.entropy() + base.kl(policy)).sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[mask == 0] == 0).all() and (logits.grad[0, [0, 2]] != 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_without_a_legal_choice_are_left_as_they_are(dtype):
    logits = torch.randn(2, 3, dtype=dtype)
    found = mask_logits(logits, torch.tensor([[0, 0, 0], [0, 1, 0]]))
    assert found.dtype == dtype and torch.equal(found[0], logits[0])
    extreme = Categorical.from_logits(torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]], dtype=dtype))
    assert extreme.logp(torch.tensor([0, 1])).tolist() == [0.0, 0.0] and extreme.sample().tolist() == [0, 1]
    assert found[1].tolist() == [torch.finfo(dtype).min, logits[1, 1].item(), torch.finfo(dtype).min]
    assert Categorical.from_logits(found).sample().tolist()[1] == 1


# ------------------------------------------------------------------------------------------- squashed


def log_slope(x):
    """The logarithm of tanh's derivative."""
    return 2 * (np.log(2) - abs(x) - np.log1p(np.exp(-2 * abs(x))))


@pytest.mark.parametrize("mean", [0.0, 0.4, 5.0])
@pytest.mark.parametrize(("log_std", "rel"), [(-4.0, 0), (0.0, 0), (0.7, 0), (9.0, 0.01)])  # 9 is cut to 2
def test_entropy_is_the_integral(mean, log_std, rel):
    dist = SquashedGaussian.from_logits(torch.tensor([[mean, log_std]], dtype=torch.float64), low=-1.0, high=3.0)
    std = float(np.exp(min(log_std, 2.0)))
    ends = (mean - 12 * std, mean + 12 * std)
    inner = [0.0] if ends[0] < 0.0 < ends[1] else None
    slope = integrate.quad(lambda x: log_slope(x) * stats.norm.pdf(x, mean, std), *ends, points=inner, limit=300)[0]
    found = dist.entropy().item() - stats.norm(mean, std).entropy() - np.log(2)
    assert found == pytest.approx(slope, rel=rel, abs=2e-4)


@pytest.mark.parametrize("mean", [0.0, 8.0, -20.0, 1e4])
def test_saturated_actions_stay_finite_and_inside(mean):
    logits = torch.tensor([[mean, 2.0]]).requires_grad_()
    dist = SquashedGaussian.from_logits(logits)
    drawn = dist.sample(sample_shape=(2000,), generator=seeded(0))
    assert drawn.abs().max() < 1.0
    (dist.logp(drawn).sum() + dist.entropy().sum()).backward()
    assert dist.logp(drawn).isfinite().all() and logits.grad.isfinite().all()
    assert dist.logp(torch.tensor([[1.0]])).isfinite().all()
    assert dist.rsample_and_logp(sample_shape=(2000,))[1].isfinite().all()


def test_near_a_bound_an_action_does_not_tell_what_was_squashed():
    near, far = (SquashedGaussian.from_logits(torch.tensor([[mean, -2.0]]).expand(100, 2)) for mean in (9.0, 0.5))
    for dist, differs in ((near, True), (far, False)):
        drawn, logp = dist.sample_and_logp(generator=seeded(0))
        assert bool(((logp - dist.logp(drawn)).abs() > 1).any()) == differs


# --------------------------------------------------------------------- deterministic, nested, of one's own


def test_every_draw_of_a_deterministic_one_is_the_same():
    loc = torch.arange(6.0).reshape(3, 2).requires_grad_()
    dist = Deterministic.from_logits(loc)
    drawn = dist.sample(sample_shape=(4, 5))
    assert drawn.shape == (4, 5, 3, 2) and bool((drawn == loc).all()) and not drawn.requires_grad
    assert dist.logp(drawn).shape == (4, 5, 3) and not dist.logp(drawn).any()
    assert dist.to_deterministic() is dist
    assert Deterministic.required_input_dim(Box(-1, 1, (2, 3))) == 6
    dist.rsample().sum().backward()
    assert bool((loc.grad == 1.0).all())
    assert Deterministic(torch.tensor([3, 1]), event_dims=0).logp(torch.tensor([3, 1])).tolist() == [0.0, 0.0]
    for ask in (dist.entropy, lambda: dist.kl(dist), MultiDistribution((dist,)).entropy):
        with pytest.raises(NotAvailableError, match="before calling to_deterministic"):
            ask()


class Scaled(Deterministic):
    """A user's distribution: a point that is the inputs times a factor; `from_logits` takes any keywords."""

    @classmethod
    def from_logits(cls, logits, factor=1.0, **kwargs):
        made = super().from_logits(logits * factor)
        made.seen = kwargs
        return made

    @staticmethod
    def required_input_dim(space, width=1, **kwargs):
        return width


CHOICES = gym.spaces.MultiDiscrete([2, 3])
STRUCT = {"child_distribution_cls_struct": {"b": Categorical, "a": DiagGaussian}, "input_lens": {"a": 4, "b": 3}}


def test_arguments_can_be_fixed():
    first = MultiCategorical.get_partial_dist_cls(space=CHOICES, input_lens=[2, 3])
    dist = first.from_logits(torch.zeros(4, 5))
    assert (type(dist), first.__name__, issubclass(first, MultiCategorical)) == (first, "MultiCategorical", True)
    assert first.required_input_dim(CHOICES) == 5
    assert dist.kl(MultiCategorical.from_logits(torch.zeros(4, 5), [2, 3])).tolist() == [0.0] * 4
    second = first.get_partial_dist_cls(start=[1, 1])
    assert second.from_logits(torch.zeros(50, 5)).sample().min() == 1
    assert first.from_logits(torch.zeros(1, 5), start=[7, 7]).sample().min() >= 7
    dist = MultiDistribution.get_partial_dist_cls(**STRUCT).from_logits(torch.zeros(2, 7))
    again = MultiDistribution(child_distribution_struct=dist.children)
    assert {key: value.shape for key, value in again.sample().items()} == {"a": (2, 2), "b": (2,)}


def test_classes_of_users_get_every_fixed_keyword():
    cls = Scaled.get_partial_dist_cls(space=CHOICES, factor=3.0, width=7)
    dist = cls.from_logits(torch.ones(1, 2), more=True)
    assert dist.sample_and_logp()[0].tolist() == [[3.0, 3.0]]
    assert dist.seen == {"space": CHOICES, "width": 7, "more": True}
    assert cls.required_input_dim(CHOICES) == 7
    assert Distribution.to_deterministic(dist) is dist, "unless overridden"
    with pytest.raises(ConfigError, match="factor"):
        cls.from_logits(torch.ones(1, 2), factor=2.0)


# -------------------------------------------------------------------------------------------- errors

FIXED = MultiCategorical.get_partial_dist_cls(space=CHOICES, input_lens=[2, 3])
GAUSSIAN = DiagGaussian.from_logits(torch.zeros(1, 4))
SQUASHED = SquashedGaussian.from_logits(torch.zeros(1, 4))
PAIR = MultiCategorical.from_logits(torch.zeros(1, 4), [2, 2])
PARTS = distribution_for(NESTED).from_logits(torch.zeros(1, 9))


@pytest.mark.parametrize(
    ("call", "error", "phrase"),
    [
        (lambda: DiagGaussian.from_logits(torch.zeros(2, 3)), SpaceError, "even last axis"),
        (lambda: Categorical.from_logits(torch.zeros(1, 2)).kl(GAUSSIAN), NotAvailableError, "another Categorical"),
        (lambda: Categorical.from_logits(torch.zeros(3, 2)).logp(torch.tensor([9])), ColumnError, "from 0 to 1"),
        (lambda: SquashedGaussian(GAUSSIAN, low=-1.0, high=np.inf), SpaceError, "finite bounds"),
        (lambda: SQUASHED.kl(SquashedGaussian(GAUSSIAN, high=2.0)), NotAvailableError, "same bounds"),
        (lambda: MultiCategorical.from_logits(torch.zeros(1, 4), [2, 3]), SpaceError, r"2\+3 logits[\s\S]*\(1, 4\)"),
        (lambda: type(PARTS).from_logits(torch.zeros(1, 8)), SpaceError, r"4\+2\+3 inputs for 3 parts"),
        (lambda: PARTS.logp({"turn": torch.zeros(1)}), ColumnError, "turn: leaf"),
        (lambda: PARTS.kl(MultiDistribution((PAIR,))), NotAvailableError, "nested alike"),
        (lambda: mask_logits(torch.zeros(2, 3), torch.ones(2, 4)), ColumnError, r"\[2, 3\][\s\S]*\[2, 4\]"),
        (lambda: Categorical.get_partial_dist_cls(strat=2), ConfigError, "did you mean 'start'"),
        (lambda: FIXED.required_input_dim(gym.spaces.MultiDiscrete([4])), SpaceError, "made for one space"),
        (lambda: DiagGaussian.required_input_dim(Discrete(2)), SpaceError, "a float Box"),
        (lambda: Categorical.required_input_dim(gym.spaces.MultiBinary(2)), SpaceError, "a Discrete"),
        (lambda: Deterministic.required_input_dim(Discrete(2)), SpaceError, "a Box action space"),
        (lambda: SquashedGaussian.required_input_dim(Box(-np.inf, 1, (2,))), SpaceError, "finite bounds"),
        (lambda: MultiCategorical.required_input_dim(Box(-np.inf, 3, (2,), np.int64)), SpaceError, "bounded integer"),
    ],
)
def test_wrong_uses_are_named(call, error, phrase):
    with pytest.raises(error, match=phrase):
        call()
