"""From observations to actions: forward passes and acting pipelines, on arrays and on tensors."""

__all__: list[str] = []
