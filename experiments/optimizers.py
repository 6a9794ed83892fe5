"""Optimisers and the learning-rate schedule, as functions of the step number alone."""

import dataclasses

import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Linear warm-up, inverse square root, linear cool-down to zero.

    `peak` is reached after `warmup` steps and kept until `timescale`; from there the rate falls as
    sqrt(timescale / step). The last `cooldown` of a run, a share of its steps, scales that
    linearly to 0, which is where much of the held-out gain shows. To train on, raise the number
    of steps: only the cool-down moves.

    Example: peak 1e-2, warmup 100, timescale 400, no cool-down: step 50 -> 5e-3, 100 -> 1e-2,
    400 -> 1e-2, 1600 -> 5e-3. With cooldown 0.25 of 1600 steps, step 1400 -> half its rate.
    """

    peak: float = 1e-2
    warmup: int = 100
    timescale: int = 1000
    cooldown: float = 0.0

    def __post_init__(self):
        if self.peak <= 0 or self.timescale < 1 or self.warmup < 0:
            raise ValueError(f"{self}: peak must be above 0, timescale 1 and warmup 0 or more")
        if not 0 <= self.cooldown <= 1:
            raise ValueError(f"cooldown={self.cooldown}: is a share of the steps, 0 to 1")

    def rate(self, step, num_steps):
        """The learning rate of a step (0-based) in a run of `num_steps`; both may be traced."""
        step = jnp.asarray(step, jnp.float32) + 1.0
        rate = self.peak * jnp.minimum(1.0, step / max(self.warmup, 1))
        rate *= jnp.sqrt(self.timescale / jnp.maximum(step, self.timescale))
        if not self.cooldown:
            return rate
        left = (num_steps - step) / jnp.maximum(self.cooldown * num_steps, 1.0)
        return rate * jnp.clip(left, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Adafactor:
    """Adafactor as T5 has it: rates relative to each parameter's size, no momentum.

    Attributes:
      schedule: the relative rate.
      clip_norm: global gradient norm to clip at; None = Adafactor's own update clipping only.
    """

    schedule: Schedule = Schedule()
    clip_norm: float | None = None

    def transform(self, num_steps) -> optax.GradientTransformation:
        adafactor = optax.adafactor(
            lambda step: self.schedule.rate(step, num_steps),
            min_dim_size_to_factor=128,
            decay_rate=0.8,
            multiply_by_parameter_scale=True,
            clipping_threshold=1.0,
            momentum=None,
            eps=1e-30,
            factored=True,
        )
        return _clipped(adafactor, self.clip_norm)


@dataclasses.dataclass(frozen=True)
class AdamW:
    """AdamW. Crawls on T5's unit-variance embeddings at rates that suit its other weights.

    Attributes:
      schedule: the rate.
      weight_decay: decoupled.
      clip_norm: global gradient norm to clip at; None = none.
    """

    schedule: Schedule = Schedule(peak=1e-3)
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0

    def transform(self, num_steps) -> optax.GradientTransformation:
        adamw = optax.adamw(
            lambda step: self.schedule.rate(step, num_steps),
            b2=0.98,
            weight_decay=self.weight_decay,
        )
        return _clipped(adamw, self.clip_norm)


def _clipped(transform, clip_norm: float | None):
    if clip_norm is None:
        return transform
    return optax.chain(optax.clip_by_global_norm(clip_norm), transform)
