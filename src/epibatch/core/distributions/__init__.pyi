from .categorical import Categorical as Categorical, TorchCategorical as TorchCategorical
from .choosing import (
    MultiDistribution as MultiDistribution,
    TorchMultiDistribution as TorchMultiDistribution,
    distribution_for as distribution_for,
)
from .deterministic import Deterministic as Deterministic, TorchDeterministic as TorchDeterministic
from .diag_gaussian import DiagGaussian as DiagGaussian, TorchDiagGaussian as TorchDiagGaussian
from .distribution import Distribution as Distribution, TorchDistribution as TorchDistribution
from .masked import mask_logits as mask_logits
from .multi_categorical import MultiCategorical as MultiCategorical, TorchMultiCategorical as TorchMultiCategorical
from .squashed_gaussian import SquashedGaussian as SquashedGaussian, TorchSquashedGaussian as TorchSquashedGaussian
