"""Action distributions: thin classes over a module's `action_dist_inputs`, cheap to build at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epibatch.core.lazy import lazy_exports

if TYPE_CHECKING:
    from epibatch.core.distributions.categorical import Categorical, TorchCategorical
    from epibatch.core.distributions.choosing import distribution_for
    from epibatch.core.distributions.deterministic import Deterministic, TorchDeterministic
    from epibatch.core.distributions.diag_gaussian import DiagGaussian, TorchDiagGaussian
    from epibatch.core.distributions.distribution import Distribution, TorchDistribution
    from epibatch.core.distributions.masked import mask_logits
    from epibatch.core.distributions.multi_categorical import MultiCategorical, TorchMultiCategorical
    from epibatch.core.distributions.multi_distribution import MultiDistribution, TorchMultiDistribution
    from epibatch.core.distributions.squashed_gaussian import SquashedGaussian, TorchSquashedGaussian

__all__ = [
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Distribution",
    "MultiCategorical",
    "MultiDistribution",
    "SquashedGaussian",
    "TorchCategorical",
    "TorchDeterministic",
    "TorchDiagGaussian",
    "TorchDistribution",
    "TorchMultiCategorical",
    "TorchMultiDistribution",
    "TorchSquashedGaussian",
    "distribution_for",
    "mask_logits",
]

__getattr__, __dir__ = lazy_exports(__name__)
