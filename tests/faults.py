"""Faults to plant: what speculative decoders get wrong, each as one replaced function.

`FAULTS` maps a name to a function that plants it with pytest's monkeypatch (and may return
keyword arguments for `checks.table_pair`).
"""

import dataclasses

import fakes
import jax
import jax.numpy as jnp

from specdec import generation, speculative, verification
from specdec.buffers import read_at
from specdec.drafters import ModelDrafter
from specdec.drafters import model as model_drafter
from specdec.models import layers


def residual_swapped(patch):
    right = verification.residual_probs
    patch.setattr(verification, "residual_probs", lambda p, q: right(q, p))


def residual_from_p(patch):
    patch.setattr(verification, "residual_probs", lambda p, q: p)


def q_before_filters(patch):
    """The draft's tokens come from the filtered law; what is reported as q is the unfiltered."""
    right = model_drafter.standardize
    filtered = {}

    def standardize(*args, **kwargs):
        rows = right(*args, **kwargs)
        filtered["probs"] = rows.probs[:, 0]
        return rows._replace(probs=rows.model_probs)

    sample_rows = model_drafter.sample_rows
    patch.setattr(model_drafter, "standardize", standardize)
    patch.setattr(
        model_drafter,
        "sample_rows",
        lambda probs, settings, drawn: sample_rows(filtered["probs"], settings, drawn),
    )


def p_before_filters(patch):
    right = speculative.standardize

    def standardize(*args, **kwargs):
        rows = right(*args, **kwargs)
        return rows._replace(probs=rows.model_probs)

    patch.setattr(speculative, "standardize", standardize)


def one_uniform_for_all_positions(patch):
    _one_uniform_for_all(patch, verification)


def one_uniform_for_all_drafts(patch):
    _one_uniform_for_all(patch, model_drafter)


def _one_uniform_for_all(patch, module):
    right = module.uniforms
    patch.setattr(module, "uniforms", lambda key, size: jnp.broadcast_to(right(key, 1), (size,)))


def _rows_changed(patch, change):
    right = speculative.score

    def score(*args, **kwargs):
        rows, cache = right(*args, **kwargs)
        return jax.tree.map(change, rows), cache

    patch.setattr(speculative, "score", score)


def target_row_off_by_one(patch):
    _rows_changed(patch, lambda rows: jnp.roll(rows, 1, axis=1))


def bonus_from_the_wrong_row(patch):
    _rows_changed(patch, lambda rows: rows.at[:, -1].set(rows[:, -2]))


def accepted_without_prefix(patch):
    patch.setattr(
        verification,
        "_num_accepted",
        lambda accepted, num_drafted: jnp.minimum(accepted.sum(), num_drafted).astype(jnp.int32),
    )


@dataclasses.dataclass(frozen=True)
class StaleTableModel(fakes.TableModel):
    """Sees two slots beyond each query: what rejected drafts left there."""

    def init_cache(self, params, inputs, cache_length):
        return super().init_cache(params, inputs, cache_length + 2)

    def extend(self, params, cache, tokens, positions):
        padded = jnp.pad(tokens, [(0, 0), (0, 2)])
        stale = read_at(cache.tokens, positions + tokens.shape[1], 2)
        padded = padded.at[:, tokens.shape[1] :].set(stale)
        logits, _ = super().extend(params, cache, padded, positions)
        _, cache = super().extend(params, cache, tokens, positions)
        return logits[:, 2:], cache


def stale_slots_attended(patch):
    return {"model": StaleTableModel}


def draft_cache_misses_its_last_token(patch):
    """The first run of a round takes the newest token only."""

    def catch_up(self, params, cache, context, num_tokens):
        newest = read_at(context.tokens, context.lengths - 1, 1)
        return self._extend(params, cache, newest, context.lengths - 1)

    patch.setattr(ModelDrafter, "catch_up", catch_up)


def no_slack_in_the_buffer(patch):
    right = speculative.buffer_length
    patch.setattr(
        speculative, "buffer_length", lambda config, length, slack: right(config, length, slack=0)
    )


def position_bias_without_offset(patch):
    right = layers.attend

    def attend(queries, keys, values, visible, bias=None, **kwargs):
        # Distances count from the end of the block, as if nothing were cached.
        if bias is not None:
            bias = jnp.roll(bias, visible[0, 0] - 1, axis=1)
        return right(queries, keys, values, visible, bias, **kwargs)

    patch.setattr(layers, "attend", attend)


def accept_on_less_or_equal(patch):
    patch.setattr(verification, "is_accepted", lambda accept, uniform: uniform <= accept)


def eos_dropped(patch):
    """EOS inside an accepted run doesn't end the row."""

    def append(state, block, num_new, eos_id):
        inner = block.tokens.at[:, :-1].set(
            jnp.where(block.tokens == eos_id, -1, block.tokens)[:, :-1]
        )
        appended, num = generation.append(state, block.replace(tokens=inner), num_new, eos_id)
        columns = generation.append(state, block, num_new, -1)[0].columns
        return appended.replace(columns=columns), num

    patch.setattr(speculative, "append", append)


def rows_advance_by_the_batch_minimum(patch):
    def append(state, block, num_new, eos_id):
        least = jnp.where(state.running, num_new, num_new.max()).min()
        return generation.append(state, block, jnp.minimum(num_new, least), eos_id)

    patch.setattr(speculative, "append", append)


def one_key_for_drafting_and_verifying(patch):
    def round_keys(keys, num_rounds):
        folded = jax.vmap(jax.random.fold_in)(keys, num_rounds)
        return folded, folded

    patch.setattr(speculative, "round_keys", round_keys)


# Which checks are expected to catch which fault: the numbers of `checks`.
FAULTS = {
    residual_swapped: (1, 3),
    residual_from_p: (1, 3),
    q_before_filters: (3, 5),
    p_before_filters: (3,),
    one_uniform_for_all_positions: (3,),
    target_row_off_by_one: (2, 3, 4),
    bonus_from_the_wrong_row: (2, 3),
    accepted_without_prefix: (2, 3),
    stale_slots_attended: (2, 3, 4, 5),
    draft_cache_misses_its_last_token: (5,),
    no_slack_in_the_buffer: (2, 3),
    position_bias_without_offset: (2,),
    accept_on_less_or_equal: (1,),
    eos_dropped: (2, 3),
    rows_advance_by_the_batch_minimum: (2,),
    one_key_for_drafting_and_verifying: (6, 3),
    one_uniform_for_all_drafts: (3,),
}
