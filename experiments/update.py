"""One training step, and the same losses on held-out text.

Dimensions: B batch, T decoder length, K real ids.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from experiments import losses
from experiments.batching import Batch
from experiments.distill import TargetView, in_groups, student_logits, view_target
from experiments.losses import LossWeights
from experiments.top_rows import TopRows, merged_log_probs
from specdec.buffers import prefix_mask
from specdec.checkpoints import strict
from specdec.models import Config


@flax.struct.dataclass
class TrainState:
    """What the next step needs, and all that a checkpoint holds.

    Attributes:
      step: [] int32, number of steps done.
      params, opt_state: by student name.
    """

    step: jax.Array
    params: dict[str, Any]
    opt_state: dict[str, Any]


class Updater:
    """The jitted functions of a run. Everything that is static sits here.

    Attributes:
      configs: shape of each student, by name.
      optimizer: see `optimizers`.
      target_config: of the frozen target; None = none.
      with_target_logits: whether a loss asks for the target's distributions.
      num_ids: real ids, K.
      seed: of dropout.
      frozen: the groups of a student's parameters that stay as they are, by name.
    """

    def __init__(
        self,
        configs: Mapping[str, Config],
        optimizer,
        *,
        num_ids: int,
        seed: int,
        target_config: Config | None = None,
        with_target_logits: bool = False,
        frozen: Mapping[str, Sequence[str]] | None = None,
    ):
        self.configs = dict(configs)
        self.optimizer = optimizer
        self.num_ids = num_ids
        self.seed = seed
        self.target_config = target_config
        self.with_target_logits = with_target_logits
        self.frozen = dict(frozen or {})
        self.step = jax.jit(self._step, donate_argnums=0)
        self.evaluate = jax.jit(self._evaluate)

    def init(self, params: Mapping[str, Any]) -> TrainState:
        """The state before the first step."""
        transform = self.optimizer.transform(1)  # the state does not depend on the length
        opt_state = {name: transform.init(self._split(name, params)[0]) for name in self.configs}
        return TrainState(jnp.zeros((), jnp.int32), dict(params), opt_state)

    def _step(
        self,
        state: TrainState,
        target_params: Any,
        batch: Batch,
        rows: TopRows | None,
        weights: LossWeights,
        num_steps: jax.Array,
    ) -> tuple[TrainState, dict[str, dict[str, jax.Array]]]:
        """One update of every student on one shared pass of the target -> state, metrics."""
        view = self._view(target_params, batch, with_logits=rows is None)
        transform = self.optimizer.transform(num_steps)
        step_key = jax.random.fold_in(jax.random.key(self.seed), state.step)
        params, opt_state, metrics = {}, {}, {}
        for index, name in enumerate(self.configs):
            trained, kept = self._split(name, state.params)
            loss_fn = functools.partial(
                self._loss,
                kept=kept,
                name=name,
                batch=batch,
                view=view,
                rows=rows,
                weights=weights,
                dropout_key=jax.random.fold_in(step_key, index),
            )
            gradients, metrics[name] = jax.grad(loss_fn, has_aux=True)(trained)
            updates, opt_state[name] = transform.update(gradients, state.opt_state[name], trained)
            params[name] = _joined(optax.apply_updates(trained, updates), kept)
            metrics[name]["gradient_norm"] = optax.global_norm(gradients)
        return state.replace(step=state.step + 1, params=params, opt_state=opt_state), metrics

    def _evaluate(self, params: dict[str, Any], target_params: Any, batch: Batch):
        """Means per token of each loss by student name, without dropout."""
        view = self._view(target_params, batch, with_logits=True)
        metrics = {}
        for name in self.configs:
            parts = self._parts(params[name], name=name, batch=batch, view=view)
            metrics[name] = _means(parts, batch)
        return metrics

    def _view(self, target_params: Any, batch: Batch, *, with_logits: bool) -> TargetView:
        if self.target_config is None:
            return TargetView(None, None)
        return view_target(
            self.target_config,
            target_params,
            batch,
            num_ids=self.num_ids,
            with_logits=with_logits and self.with_target_logits,
        )

    def _split(self, name: str, params: Mapping[str, Any]) -> tuple[dict, dict]:
        """A student's parameters that are trained, and those that are kept, nested."""
        frozen = self.frozen.get(name, ())
        parts: tuple[dict, dict] = {}, {}
        for path, leaf in strict.flatten(params[name]).items():
            parts[in_groups(path, frozen)][path] = leaf
        trained, kept = map(strict.unflatten, parts)
        return trained, kept

    def _loss(
        self, trained: Any, *, kept: Any, weights: LossWeights, batch: Batch, **context: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The mixed loss, and its parts."""
        means = _means(self._parts(_joined(trained, kept), batch=batch, **context), batch)
        mixed = sum(getattr(weights, part) * mean for part, mean in means.items())
        return mixed, {"loss": mixed, **means}

    def _parts(
        self,
        params: Any,
        *,
        name: str,
        batch: Batch,
        view: TargetView,
        rows: TopRows | None = None,
        dropout_key: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Every loss that can be told, [B, T] each, by its name in `LossWeights`."""
        config = self.configs[name]
        key = dropout_key if config.dropout_rate > 0 else None
        logits = student_logits(config, params, batch, view, dropout_key=key)
        log_q = losses.real_log_probs(logits, self.num_ids)
        if log_q.ndim == 3:
            return _losses(log_q, batch, view, rows)
        # Each target's mean over the rows, of this place and before it, that predict it.
        parts = [
            _losses(jnp.roll(log_q[:, ahead], ahead, axis=1), batch, view, rows)
            for ahead in range(log_q.shape[1])
        ]
        return jax.tree.map(lambda *values: _mean_of_predictions(jnp.stack(values)), *parts)


def _losses(
    log_q: jax.Array, batch: Batch, view: TargetView, rows: TopRows | None
) -> dict[str, jax.Array]:
    """`Updater._parts` of log-probabilities [B, T, K]."""
    parts = {"cross_entropy": losses.cross_entropy(log_q, batch.targets)}
    if rows is None and view.log_p is None:
        return parts
    log_p = view.log_p
    if rows is not None:
        log_p, log_q = merged_log_probs(rows, log_q)
    parts["forward_kl"] = losses.forward_kl(log_p, log_q)
    parts["tvd"] = losses.total_variation(log_p, log_q)
    return parts


def _mean_of_predictions(values: jax.Array) -> jax.Array:
    """[J, B, T] -> [B, T]: target t is predicted by rows t, t - 1 ... t - J + 1, if there are any.

    Example: J = 2, values [[1, 2, 3]] and [[-, 4, 5]] -> [1, 3, 4].
    """
    ahead, slots = jnp.arange(values.shape[0])[:, None], jnp.arange(values.shape[2])
    exists = (ahead <= slots)[:, None, :]
    return jnp.where(exists, values, 0.0).sum(0) / exists.sum(0)


def _means(parts: dict[str, jax.Array], batch: Batch) -> dict[str, jax.Array]:
    mask = prefix_mask(batch.target_lengths, batch.targets.shape[1])
    return {part: losses.masked_mean(values, mask) for part, values in parts.items()}


def _joined(trained: dict, kept: dict) -> dict:
    """What `Updater._split` took apart."""
    return strict.unflatten({**strict.flatten(trained), **strict.flatten(kept)})
