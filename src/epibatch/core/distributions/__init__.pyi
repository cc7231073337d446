from .categorical import Categorical as Categorical, TorchCategorical as TorchCategorical
from .choosing import (
    MultiDistribution as MultiDistribution,
    TorchMultiDistribution as TorchMultiDistribution,
    distribution_for as distribution_for,
)
from .distribution import Deterministic as Deterministic, TorchDeterministic as TorchDeterministic
from .gaussian import DiagGaussian as DiagGaussian, TorchDiagGaussian as TorchDiagGaussian
from .distribution import Distribution as Distribution, TorchDistribution as TorchDistribution
from .distribution import mask_logits as mask_logits
from .categorical import MultiCategorical as MultiCategorical, TorchMultiCategorical as TorchMultiCategorical
from .gaussian import SquashedGaussian as SquashedGaussian, TorchSquashedGaussian as TorchSquashedGaussian
