"""The loop: the target's law and the target's argmax for any draft, stops, counts, independence.

Three programs' worth of shapes, so that most tests only bring other values: `LAW` (many rows of
one request, 3 tokens), `REQUESTS` (many rows, all different, ragged prompts and limits) and
`greedy` (temperature 0, vocabulary 24, one program a gamma).
"""

import collections
import functools
import itertools
from typing import Any, NamedTuple

import checks
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import speculative
from specdec.autoregressive import autoregressive_decode
from specdec.config import SpecConfig
from specdec.drafters import ModelDrafter, RandomDrafter
from specdec.generation import BONUS, CORRECTION, DRAFT, EOS, LENGTH, NONE
from specdec.sampling import settings
from specdec.speculative import PairParams, speculative_decode
from specdec.types import Proposal, Rows, Verdict

EOS_ID = checks.EOS
GAMMAS = pytest.mark.parametrize("gamma", range(1, 7))


# --- the output law --------------------------------------------------------------------------

V = 4
# Every filter is on in the program; values that change nothing stand for off.
OFF = dict(temperature=1.0, top_k=V, top_p=1.0)
HOWS = {
    "off": OFF,
    "t_0.25": {**OFF, "temperature": 0.25},
    "t_0.5": {**OFF, "temperature": 0.5},
    "t_2": {**OFF, "temperature": 2.0},
    "top_k": {**OFF, "top_k": 2},
    "top_p": {**OFF, "temperature": 1.3, "top_p": 0.7},
    "all": dict(temperature=0.7, top_k=3, top_p=0.8),
}
LAW = pytest.mark.parametrize("gamma", [1, 2, 4])


def p_value(gamma, how, *, drafter=None, draft=None, pair=None, seed=0):
    pair = pair or checks.table_pair(V, drafter=drafter)
    draft_settings = None if draft is None else settings(**draft)
    return checks.law_p_value(pair, gamma=gamma, how=how, seed=seed, draft_settings=draft_settings)


@pytest.mark.parametrize(
    "gamma, how", [*itertools.product((1, 4), HOWS), (2, "off"), (2, "all")], ids=str
)
def test_output_law_equals_target_for_a_model_draft(gamma, how):
    """B03 among others: the settings reach p as well as q."""
    assert p_value(gamma, HOWS[how]) > 1e-4


@LAW
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_output_law_equals_target_for_a_random_draft(gamma, temperature):
    """In the program that compiles no filter."""
    assert p_value(gamma, {"temperature": temperature}, drafter=RandomDrafter(V)) > 1e-4


@LAW
@pytest.mark.parametrize("how", ["off", "all"])
def test_output_law_equals_target_for_an_argmax_draft(gamma, how):
    """B01: its q is one-hot."""
    assert p_value(gamma, HOWS[how], draft={"temperature": 0}) > 1e-4


@LAW
@pytest.mark.parametrize("temperature", [0.3, 3.0])
def test_output_law_equals_target_for_a_draft_of_other_settings(gamma, temperature):
    """Filters of its own, too; the target's own law is filtered."""
    draft = dict(temperature=temperature, top_k=2, top_p=0.9)
    assert p_value(gamma, HOWS["all"], draft=draft) > 1e-4


def test_plain_decoding_follows_the_law():
    for how in ("off", "all"):
        pair = checks.table_pair(V)
        assert checks.law_p_value(pair, decode="plain", how=HOWS[how]) > 1e-4


def test_the_check_of_the_law_is_no_formality():
    """Against the law of another temperature the same sample fails."""
    pair = checks.table_pair(V)
    draws = functools.partial(law_sample, pair, gamma=2)
    law = fakes.enumerate_law(np.asarray(pair.params.target), 3, eos_id=EOS_ID, temperature=1.0)
    same = fakes.chi_square_p_value(draws(how=OFF), law)
    other = fakes.chi_square_p_value(draws(how={**OFF, "temperature": 1.1}), law)
    assert same > 1e-4 > other


def law_sample(pair, *, gamma, how):
    result = law_result(pair, gamma, how)
    return collections.Counter(
        fakes.sequences(np.asarray(result.tokens), np.asarray(result.lengths))
    )


def law_result(pair, gamma, how, **kwargs):
    config = SpecConfig(gamma=gamma, max_new_tokens=3, eos_id=EOS_ID)
    many = pair.rows([0] * 20_000)
    return many.speculate(checks.keys(1, 20_000), config, settings(**how), **kwargs)


def test_a_draft_that_is_the_target_is_never_rejected():
    """One rule for both: filters and all."""
    result = law_result(checks.table_pair(V, likeness=1), 2, HOWS["all"])
    counts = result.speculation
    assert int(counts.num_tested.sum()) == int((np.asarray(result.origins) == DRAFT).sum()) > 0
    assert not (np.asarray(result.origins) == CORRECTION).any()
    np.testing.assert_allclose(np.nanmin(counts.betas), 1, atol=1e-5)


# The reference triple over the ids 0, 2, 3; EOS has no probability.
TRIPLE_P, TRIPLE_Q = [0.2, 0, 0.5, 0.3], [0.6, 0, 0.3, 0.1]


def triple_pair():
    with np.errstate(divide="ignore"):
        tables = [fakes.constant_table(np.log(row)) for row in (TRIPLE_P, TRIPLE_Q)]
    pair = checks.table_pair(V)
    return checks.Pair(
        pair.target, pair.drafter, PairParams(*map(jnp.asarray, tables)), pair.inputs
    )


def measured_alpha(result):
    accepted = (np.asarray(result.origins) == DRAFT).sum()
    return accepted / int(result.speculation.num_tested.sum())


def test_alpha_of_the_triple():
    """B10: .6; drawing from the target and comparing would give .3."""
    result = law_result(triple_pair(), 1, OFF)
    assert 0.58 < measured_alpha(result) < 0.62
    np.testing.assert_allclose(np.nanmean(result.speculation.betas), 0.6, atol=1e-5)


@pytest.mark.parametrize(
    "temperature, law", [(1.0, TRIPLE_P), (0.5, [0.1053, 0, 0.6579, 0.2368])], ids=str
)
def test_law_of_the_triple(temperature, law):
    """B01, B03, B04: every slot follows p."""
    result = law_result(triple_pair(), 1, {**OFF, "temperature": temperature})
    tokens = np.asarray(result.tokens)
    for slot in range(3):
        frequency = np.bincount(tokens[:, slot], minlength=V) / len(tokens)
        assert np.abs(frequency - law).sum() / 2 < 0.02


def test_alpha_of_an_argmax_draft_of_the_triple():
    """B01: p[argmax q] = .2."""
    result = law_result(triple_pair(), 1, OFF, draft_settings=settings(0))
    assert 0.18 < measured_alpha(result) < 0.22


# --- vocabularies ----------------------------------------------------------------------------


def wide_tables(target_size, draft_size):
    """Tables that share 36 real ids; padding rows have large random logits."""
    real = fakes.random_table(0, 36)
    draft = 0.5 * real + 0.5 * fakes.random_table(1, 36)
    noise = 20 + fakes.random_table(2, 8)
    widen = lambda table, size: np.concatenate([table, noise[:, : size - 36]], axis=1)
    return widen(real, target_size), widen(draft, draft_size)


def wide_result(p, q, num_ids):
    target, draft = fakes.TableModel(p.shape[1]), fakes.TableModel(q.shape[1])
    size = 20_000
    return speculative_decode(
        PairParams(jnp.asarray(p), jnp.asarray(q)),
        fakes.TableInputs(jnp.zeros(size, jnp.int32)),
        jnp.zeros((size, 1), jnp.int32),
        checks.keys(0, size),
        target=target,
        drafter=ModelDrafter(draft),
        settings=settings(1.0),
        config=SpecConfig(gamma=1, max_new_tokens=2, eos_id=EOS_ID, num_ids=num_ids),
    )


def wide_p_value(result, table):
    counts = collections.Counter(
        fakes.sequences(np.asarray(result.tokens), np.asarray(result.lengths))
    )
    return fakes.chi_square_p_value(counts, fakes.enumerate_law(table, 2, eos_id=EOS_ID))


@pytest.mark.parametrize("sizes", [(40, 36), (36, 40), (40, 40)], ids=str)
def test_padding_of_either_table_leaves_the_law(sizes):
    """B25: one and the same law, of the 36 real ids."""
    p, q = wide_tables(*sizes)
    result = wide_result(p, q, 36)
    assert np.asarray(result.tokens).max() < 36
    assert wide_p_value(result, p[:, :36]) > 1e-4
    # The padding counts in no log-prob.
    first = np.asarray(result.tokens)[:, 0]
    expected = np.log(fakes.softmax(p[0, :36]))[first]
    np.testing.assert_allclose(result.model_log_probs[:, 0], expected, atol=1e-5)


def test_the_target_emits_ids_that_the_draft_lacks():
    """Through the residual; and the draft goes on from them."""
    p = fakes.random_table(3, 40)
    q = 0.5 * p[:, :36] + 0.5 * fakes.random_table(1, 36)
    result = wide_result(p, q, None)
    tokens, origins = np.asarray(result.tokens), np.asarray(result.origins)
    assert (tokens >= 36).any()
    assert not ((tokens >= 36) & (origins == DRAFT)).any()
    assert wide_p_value(result, p) > 1e-4


def test_drafts_that_the_target_lacks_are_rejected():
    """The draft's table is larger, and nobody says that its last ids are padding."""
    q = np.concatenate([fakes.random_table(1, 36), np.full((fakes.NUM_ROWS, 4), 2.0)], axis=1)
    p = fakes.random_table(3, 36)
    result = wide_result(p, q.astype(np.float32), None)
    assert np.asarray(result.tokens).max() < 36
    assert wide_p_value(result, p) > 1e-4
    assert np.isfinite(result.model_log_probs).all()


# --- many different rows ---------------------------------------------------------------------


class Requests(NamedTuple):
    """Rows that differ in everything; the prompts' slots beyond their lengths hold garbage."""

    salt: Any
    prompt: Any
    prompt_lengths: Any
    limits: Any
    keys: Any

    def take(self, indices):
        return jax.tree.map(lambda leaf: leaf[jnp.asarray(indices)], self)


def make_requests(size, vocab_size, max_new_tokens, seed=0):
    rng = np.random.default_rng(seed)
    return Requests(
        jnp.asarray(rng.integers(0, 1000, size), jnp.int32),
        jnp.asarray(rng.integers(0, vocab_size, (size, 4)), jnp.int32),
        jnp.asarray(1 + rng.permutation(size) % 4, jnp.int32),
        jnp.asarray(rng.permutation(size) % (max_new_tokens + 1), jnp.int32),
        checks.keys(seed, size),
    )


def decode(tables, requests, *, gamma, max_new_tokens, settings, drafter=None, **kwargs):
    model = fakes.TableModel(tables[0].shape[1])
    return speculative_decode(
        PairParams(*map(jnp.asarray, tables)),
        fakes.TableInputs(requests.salt),
        requests.prompt,
        requests.keys,
        target=model,
        drafter=drafter or ModelDrafter(model),
        settings=settings,
        config=SpecConfig(gamma=gamma, max_new_tokens=max_new_tokens, eos_id=EOS_ID),
        prompt_lengths=requests.prompt_lengths,
        limits=requests.limits,
        **kwargs,
    )


N, GAMMA, NUM_ROWS = 12, 3, 2000
REQUESTS = make_requests(NUM_ROWS, 6, N)
_P = fakes.random_table(0, 6)
TABLES = (_P, 0.6 * _P + 0.4 * fakes.random_table(1, 6))
TEMPERATURE = 0.8
sampled = functools.partial(decode, gamma=GAMMA, max_new_tokens=N, settings=settings(TEMPERATURE))


@functools.cache
def everything():
    """REQUESTS decoded once, as numpy arrays."""
    return jax.tree.map(np.asarray, sampled(TABLES, REQUESTS))


def same(one, other, *, exact=True):
    """Whether two results agree: the integers bit for bit, the log-probs to rounding."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if np.issubdtype(a.dtype, np.integer):
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, atol=0 if exact else 2e-6)


def rows_of(result, indices):
    return jax.tree.map(lambda leaf: leaf[np.asarray(indices)], result)


def test_output_law_equals_target_without_any_filter():
    """One request in all rows, behind 3 slots of garbage; the program that compiles no filter."""
    counts = collections.Counter()
    for seed in range(5):
        result = sampled(
            TABLES,
            Requests(
                jnp.zeros(NUM_ROWS, jnp.int32),
                REQUESTS.prompt.at[:, 0].set(fakes.START),
                jnp.ones(NUM_ROWS, jnp.int32),
                jnp.full(NUM_ROWS, 3, jnp.int32),
                checks.keys(10 + seed, NUM_ROWS),
            ),
        )
        counts.update(fakes.sequences(np.asarray(result.tokens), np.asarray(result.lengths)))
    law = fakes.enumerate_law(TABLES[0], 3, eos_id=EOS_ID, temperature=TEMPERATURE)
    assert fakes.chi_square_p_value(counts, law) > 1e-4


def test_rows_are_independent_of_their_order():
    order = np.random.default_rng(0).permutation(NUM_ROWS)
    same(sampled(TABLES, REQUESTS.take(order)), rows_of(everything(), order))


def test_rows_are_independent_of_the_other_rows():
    """Other requests, limits and seeds beside the first half."""
    half = np.arange(NUM_ROWS) < NUM_ROWS // 2
    others = make_requests(NUM_ROWS, 6, N, seed=5)
    indices = np.where(half, np.arange(NUM_ROWS), np.arange(NUM_ROWS) + NUM_ROWS)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), REQUESTS, others)
    mixed = sampled(TABLES, both.take(indices))
    same(rows_of(mixed, half), rows_of(everything(), half))


def test_a_row_of_a_large_ragged_batch_equals_its_prompt_given_alone():
    """In a batch of 1, and without the garbage behind the prompt."""
    of_two = np.flatnonzero(np.asarray(REQUESTS.prompt_lengths) == 2)[:20]
    for row in of_two:
        one = REQUESTS.take([row])
        one = one._replace(prompt=one.prompt[:, :2])
        same(sampled(TABLES, one), rows_of(everything(), [row]), exact=False)


def test_the_seed_decides():
    again = sampled(TABLES, REQUESTS)
    same(again, everything())
    other = sampled(TABLES, REQUESTS._replace(keys=checks.keys(1, NUM_ROWS)))
    is_long = everything().lengths > 3
    differs = (np.asarray(other.tokens) != everything().tokens).any(-1)
    assert differs[is_long].mean() > 0.8


def test_rows_with_equal_requests_and_other_keys_differ():
    first = REQUESTS.take([np.argmax(everything().lengths)] * NUM_ROWS)
    tokens = np.asarray(sampled(TABLES, first._replace(keys=REQUESTS.keys)).tokens)
    assert len(np.unique(tokens, axis=0)) > 100


def test_tokens_up_to_a_lower_limit_are_a_prefix():
    full = sampled(TABLES, REQUESTS._replace(limits=jnp.full(NUM_ROWS, N, jnp.int32)))
    full, cut = jax.tree.map(np.asarray, full), everything()
    np.testing.assert_array_equal(cut.lengths, np.minimum(full.lengths, REQUESTS.limits))
    is_real = np.arange(N) < cut.lengths[:, None]
    for name in ("tokens", "origins", "log_probs", "model_log_probs"):
        np.testing.assert_array_equal(
            getattr(cut, name)[is_real], getattr(full, name)[is_real], err_msg=name
        )


def test_rows_stop_at_eos_or_at_exactly_their_limit():
    result, limits = everything(), np.asarray(REQUESTS.limits)
    is_real = np.arange(N) < result.lengths[:, None]
    has_eos = ((result.tokens == EOS_ID) & is_real).any(-1)
    assert (result.tokens[~is_real] == 0).all()
    np.testing.assert_array_equal(result.stop_reasons, np.where(has_eos, EOS, LENGTH))
    np.testing.assert_array_equal(result.lengths[~has_eos], limits[~has_eos])
    assert (result.lengths <= limits).all()
    for tokens, n in zip(result.tokens[has_eos], result.lengths[has_eos], strict=True):
        assert tokens[:n].tolist().index(EOS_ID) == n - 1
    assert 0.1 < has_eos.mean() < 0.9


def test_a_limit_of_0_decodes_and_counts_nothing():
    result, none = everything(), np.asarray(REQUESTS.limits) == 0
    counts = result.speculation
    assert none.sum() > 100
    for numbers in (result.lengths, result.num_target_calls, counts.num_tested):
        assert (numbers[none] == 0).all()
    for numbers in (counts.num_drafted, counts.num_draft_calls, counts.accept_counts + 1):
        assert (numbers[none] == 0).all()


def test_token_0_is_drawn_like_any_other():
    """B24: ids 0 and 2 with .5 each; 0 is the pad, too, and lengths are counters."""
    table = fakes.constant_table([0, -60, 0, -60, -60, -60])
    result = sampled((table, TABLES[1]), REQUESTS)
    np.testing.assert_array_equal(result.lengths, REQUESTS.limits)
    assert (np.asarray(result.stop_reasons) == LENGTH).all()
    lengths, tokens = np.asarray(result.lengths), np.asarray(result.tokens)
    counts = collections.Counter(map(tuple, tokens[lengths >= 3, :3].tolist()))
    law = {ids: 1 / 8 for ids in itertools.product((0, 2), repeat=3)}
    assert fakes.chi_square_p_value(counts, law) > 1e-4


# --- counts and log-probs --------------------------------------------------------------------


def teacher_forced(table, requests, tokens):
    """Logits [B, N, V] for the new tokens' slots, from whole prefixes, without a cache."""
    prompt, starts = np.asarray(requests.prompt), np.asarray(requests.prompt_lengths)
    num_rows, num_new = tokens.shape
    buffer = np.zeros((num_rows, prompt.shape[1] + num_new), np.int64)
    buffer[:, : prompt.shape[1]] = prompt
    slots = starts[:, None] + np.arange(num_new)
    np.put_along_axis(buffer, slots, tokens, axis=1)
    sums = np.cumsum(buffer * fakes._WEIGHTS[: buffer.shape[1]], axis=1)
    codes = np.take_along_axis(sums, slots - 1, axis=1) + np.asarray(requests.salt)[:, None]
    return table[codes % len(table)]


def test_log_probs_are_those_of_plain_decoding_for_the_same_ids():
    result = everything()
    is_real = np.arange(N) < result.lengths[:, None]
    logits = teacher_forced(TABLES[0], REQUESTS, result.tokens)
    for name, temperature in (("model_log_probs", 1), ("log_probs", TEMPERATURE)):
        expected = np.log(fakes.softmax(logits / temperature))
        expected = np.take_along_axis(expected, result.tokens[:, :, None], axis=-1)[:, :, 0]
        np.testing.assert_allclose(
            getattr(result, name), np.where(is_real, expected, 0), atol=1e-5, err_msg=name
        )


def expected_betas():
    p, q = (
        fakes.softmax(teacher_forced(table, REQUESTS, everything().tokens) / TEMPERATURE)
        for table in TABLES
    )
    return np.minimum(p, q).sum(-1)


def test_betas_are_the_overlap_where_a_draft_was_tested():
    result = everything()
    was_tested = (result.origins == DRAFT) | (result.origins == CORRECTION)
    np.testing.assert_array_equal(~np.isnan(result.speculation.betas), was_tested)
    np.testing.assert_allclose(
        result.speculation.betas[was_tested], expected_betas()[was_tested], atol=1e-5
    )


def test_counts_agree_with_the_origins():
    result, counts = everything(), everything().speculation
    num = {origin: (result.origins == origin).sum(-1) for origin in (DRAFT, CORRECTION, BONUS)}
    was_round = counts.accept_counts >= 0
    num_rounds = was_round.sum(-1)
    np.testing.assert_array_equal(num[DRAFT] + num[CORRECTION] + num[BONUS], result.lengths)
    np.testing.assert_array_equal(np.where(was_round, counts.accept_counts, 0).sum(-1), num[DRAFT])
    np.testing.assert_array_equal(counts.num_tested, num[DRAFT] + num[CORRECTION])
    np.testing.assert_array_equal(result.num_target_calls, num_rounds)
    np.testing.assert_array_equal(counts.num_draft_calls, GAMMA * num_rounds)
    assert (counts.accept_counts[~was_round] == -1).all()
    # Rounds come first, without gaps.
    assert (was_round == (np.arange(N) < num_rounds[:, None])).all()
    assert (counts.num_tested <= counts.num_drafted).all()
    assert (counts.num_drafted <= GAMMA * num_rounds).all()


def test_rounds_spell_out_the_origins():
    """accept_counts [2, 0] -> DRAFT DRAFT x, x; where x is missing the row stopped inside."""
    result, counts = everything(), everything().speculation
    for row in range(NUM_ROWS):
        position, drafted = 0, 0
        length, limit = int(result.lengths[row]), int(REQUESTS.limits[row])
        origins = result.origins[row]
        for accepted in counts.accept_counts[row][counts.accept_counts[row] >= 0]:
            room = min(GAMMA, limit - position)
            assert (origins[position : position + accepted] == DRAFT).all()
            position += int(accepted)
            if position == length:
                assert result.tokens[row, position - 1] == EOS_ID or position == limit
            else:
                assert origins[position] == BONUS if accepted == room else CORRECTION
                position += 1
            drafted += room
        assert position == length
        assert (origins[length:] == NONE).all()
        # The draft's own EOS may have ended drafting before there was no room.
        assert counts.num_drafted[row] <= drafted


def test_alpha_by_betas_and_by_acceptance_agree():
    """Accepted minus beta, summed over tested positions, has mean 0 and a known variance."""
    result = everything()
    was_tested = (result.origins == DRAFT) | (result.origins == CORRECTION)
    betas = result.speculation.betas[was_tested]
    accepted = (result.origins == DRAFT)[was_tested]
    assert len(betas) > 5000
    z = (accepted - betas).sum() / np.sqrt((betas * (1 - betas)).sum())
    assert abs(z) < 4
    assert 0.3 < betas.mean() < 0.9


# --- temperature 0 ---------------------------------------------------------------------------

GREEDY_V, GREEDY_N, GREEDY_B, GREEDY_ROWS = 24, 10, 8, 997


def greedy_settings(min_new_tokens=1, repetition_penalty=1.0):
    """Both rules are on in the program; these values change nothing but that EOS isn't first."""
    return settings(0, min_new_tokens=min_new_tokens, repetition_penalty=repetition_penalty)


def greedy(tables, requests, gamma, *, drafter=None, **how):
    result = decode(
        tables,
        requests,
        gamma=gamma,
        max_new_tokens=GREEDY_N,
        settings=greedy_settings(**how),
        drafter=drafter,
    )
    return jax.tree.map(np.asarray, result)


def plain_greedy(table, requests, **how):
    result = autoregressive_decode(
        jnp.asarray(table),
        fakes.TableInputs(requests.salt),
        requests.prompt,
        requests.keys,
        model=fakes.TableModel(GREEDY_V),
        settings=greedy_settings(**how),
        config=SpecConfig(max_new_tokens=GREEDY_N, eos_id=EOS_ID),
        prompt_lengths=requests.prompt_lengths,
        limits=requests.limits,
    )
    return jax.tree.map(np.asarray, result)


def greedy_tables():
    """Random tables that often agree, and end now and then."""
    p, noise = (fakes.random_table(seed, GREEDY_V, num_rows=GREEDY_ROWS) for seed in (0, 1))
    p[:, EOS_ID] += 1
    return p, (0.7 * p + 0.3 * noise).astype(np.float32)


GREEDY_REQUESTS = make_requests(GREEDY_B, GREEDY_V, GREEDY_N)._replace(
    limits=jnp.array([10, 10, 10, 7, 3, 10, 0, 9])
)


def from_start(limits=GREEDY_N):
    """Requests that a script answers: the start token alone, 3 slots of garbage behind it."""
    return Requests(
        jnp.zeros(GREEDY_B, jnp.int32),
        jnp.tile(jnp.array([[fakes.START, 9, 9, 9]]), (GREEDY_B, 1)),
        jnp.ones(GREEDY_B, jnp.int32),
        jnp.broadcast_to(jnp.asarray(limits, jnp.int32), (GREEDY_B,)),
        checks.keys(0, GREEDY_B),
    )


def script(*ids):
    return fakes.scripted_table(list(ids), GREEDY_V, num_rows=GREEDY_ROWS)


def generated(result, row=0):
    """A row's tokens; all beyond its length are pads."""
    tokens, n = result.tokens[row], result.lengths[row]
    assert (tokens[n:] == 0).all() and (result.origins[row][n:] == NONE).all()
    assert (result.log_probs[row][n:] == 0).all()
    return tokens[:n].tolist()


@pytest.mark.parametrize("gamma", range(9))
def test_greedy_output_equals_plain_decoding(gamma):
    """gamma = 0 is a plain step."""
    tables = greedy_tables()
    plain = plain_greedy(tables[0], GREEDY_REQUESTS)
    fast = greedy(tables, GREEDY_REQUESTS, gamma)
    assert set(plain.stop_reasons) == {EOS, LENGTH}
    for name in ("tokens", "lengths", "stop_reasons"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(plain, name), err_msg=name)
    np.testing.assert_allclose(fast.model_log_probs, plain.model_log_probs, atol=1e-5)
    np.testing.assert_allclose(fast.log_probs, 0, atol=1e-6)
    assert (fast.num_target_calls <= plain.num_target_calls).all()
    if gamma == 0:
        np.testing.assert_array_equal(fast.num_target_calls, plain.num_target_calls)
        assert (fast.speculation.num_drafted == 0).all()
        assert set(fast.origins.ravel()) == {NONE, BONUS}
    else:
        assert 0 < (fast.origins == DRAFT).sum() < fast.lengths.sum()


@pytest.mark.parametrize("drafter", [None, RandomDrafter(GREEDY_V)], ids=["model", "random"])
def test_greedy_output_is_the_same_for_every_seed(drafter):
    """B08: 56 seeds, and the log-probs, too."""
    tables = greedy_tables()
    plain = plain_greedy(tables[0], GREEDY_REQUESTS)
    for seed in range(7):
        requests = GREEDY_REQUESTS._replace(keys=checks.keys(100 + seed, GREEDY_B))
        result = greedy(tables, requests, 4, drafter=drafter)
        np.testing.assert_array_equal(result.tokens, plain.tokens)
        np.testing.assert_array_equal(result.lengths, plain.lengths)


@GAMMAS
def test_nothing_follows_eos_inside_an_accepted_run(gamma):
    """B20: all agree on 5, 6, EOS, 7, 8."""
    table = script(5, 6, EOS_ID, 7, 8)
    result = greedy((table, table), from_start(), gamma)
    for row in range(GREEDY_B):
        assert generated(result, row) == [5, 6, EOS_ID]
    assert (result.stop_reasons == EOS).all()
    # Drafts: one a round and a bonus at gamma 1, two and the EOS as a bonus at 2, all three from 3.
    expected = {1: [1, 1, -1], 2: [2, -1, -1]}.get(gamma, [3, -1, -1])
    assert result.speculation.accept_counts[0, :3].tolist() == expected
    assert result.speculation.num_tested[0] == result.speculation.num_drafted[0]
    assert result.speculation.num_tested[0] == sum(n for n in expected if n > 0)


@GAMMAS
def test_an_eos_of_the_draft_alone_is_rejected_and_ends_its_drafting(gamma):
    """B20, second case: the target says 9 and goes on."""
    target, draft = script(5, 6, 9, 10, 11), script(5, 6, EOS_ID, 7, 8)
    result = greedy((target, draft), from_start(5), gamma)
    assert generated(result) == [5, 6, 9, 10, 11]
    assert result.stop_reasons[0] == LENGTH
    if gamma >= 3:
        first_round = greedy((target, draft), from_start(3), gamma)
        assert first_round.speculation.accept_counts[0, :2].tolist() == [2, -1]
        assert first_round.speculation.num_tested[0] == 3
        assert first_round.speculation.num_drafted[0] == 3
        assert first_round.origins[0, :3].tolist() == [DRAFT, DRAFT, CORRECTION]


def test_drafting_ends_at_the_drafts_own_eos():
    """Limit and gamma leave room for 6; the draft stops at its second token."""
    target, draft = script(5, 6, 7), script(5, EOS_ID)
    result = greedy((target, draft), from_start(2), 6)
    assert generated(result) == [5, 6]
    assert result.speculation.num_drafted[0] == 2
    # The same with a limit of 1: no room for the second.
    assert greedy((target, draft), from_start(1), 6).speculation.num_drafted[0] == 1


@GAMMAS
def test_eos_and_the_limit_in_one_round(gamma):
    """B21: EOS first, the limit first, both on one token."""
    for ids, limit, expected, reason in (
        ([10, 11, EOS_ID, 20, 21, 22], 5, [10, 11, EOS_ID], EOS),
        ([10, 11, 12, 20, 21, 22, EOS_ID], 5, [10, 11, 12, 20, 21], LENGTH),
        ([10, 11, EOS_ID, 20, 21, 22], 3, [10, 11, EOS_ID], EOS),
    ):
        table = script(*ids)
        result = greedy((table, table), from_start(limit), gamma)
        assert generated(result) == expected
        assert result.stop_reasons[0] == reason


@GAMMAS
def test_limits_of_a_run_without_eos_are_exact(gamma):
    """B21: limits 1..8 in one batch."""
    ids = list(range(10, 20))
    table = script(*ids)
    result = greedy((table, table), from_start(jnp.arange(1, 9)), gamma)
    for row in range(GREEDY_B):
        assert generated(result, row) == ids[: row + 1]
    assert (result.stop_reasons == LENGTH).all()
    # Whole rounds of gamma + 1; drafts without room are never made.
    limits = np.arange(1, 9)
    np.testing.assert_array_equal(result.num_target_calls, -(-limits // (gamma + 1)))
    whole, rest = np.divmod(limits, gamma + 1)
    np.testing.assert_array_equal(result.speculation.num_drafted, whole * gamma + rest)
    np.testing.assert_array_equal(result.speculation.num_tested, whole * gamma + rest)


@GAMMAS
def test_the_minimum_length_is_exact_at_draft_positions(gamma):
    """B22: .9 on EOS at every step, at least 4 new tokens: 4 others, then EOS."""
    table = fakes.random_table(0, GREEDY_V, num_rows=GREEDY_ROWS)
    table[:, EOS_ID] = 20
    plain = plain_greedy(table, from_start(), min_new_tokens=4)
    result = greedy((table, greedy_tables()[1]), from_start(), gamma, min_new_tokens=4)
    np.testing.assert_array_equal(result.tokens, plain.tokens)
    tokens = generated(result)
    assert len(tokens) == 5 and tokens.index(EOS_ID) == 4


@GAMMAS
def test_the_penalty_sees_the_same_history_as_plain_decoding(gamma):
    """B23: [2, 1.9, 1.8] over ids 2..4, penalty 1.5: they take turns as each is penalised."""
    row = np.full(GREEDY_V, -20.0)
    row[[2, 3, 4, fakes.START]] = [2, 1.9, 1.8, -5]
    target = fakes.constant_table(row, num_rows=GREEDY_ROWS)
    plain = plain_greedy(target, from_start(6), repetition_penalty=1.5)
    assert generated(plain) == [2, 3, 4, 2, 2, 2]
    for draft in (target, greedy_tables()[1]):
        result = greedy((target, draft), from_start(6), gamma, repetition_penalty=1.5)
        np.testing.assert_array_equal(result.tokens, plain.tokens)


# --- one round, seen from outside ------------------------------------------------------------


def test_decided_block_docstring_example():
    """Drafts [5, 6, 7]: 1 accepted and a correction, all accepted and a bonus."""
    rows = Rows(*[jnp.full((2, 4, 10), 0.1)] * 2)
    drafted = Proposal(
        jnp.tile(jnp.array([5, 6, 7]), (2, 1)),
        jnp.full((2, 3, 10), 0.1),
        jnp.array([3, 3]),
        jnp.array([3, 3]),
    )
    block = speculative.decided_block(rows, drafted, Verdict(jnp.array([1, 3]), jnp.array([9, 9])))
    assert block.tokens[0, :2].tolist() == [5, 9]
    assert block.origins[0, :2].tolist() == [DRAFT, CORRECTION]
    assert block.tokens[1].tolist() == [5, 6, 7, 9]
    assert block.origins[1].tolist() == [DRAFT, DRAFT, DRAFT, BONUS]
    np.testing.assert_allclose(block.log_probs, np.log(0.1), atol=1e-6)


def test_step_info_of_two_rounds():
    """Target 5, 6, 7, 8, draft 5, 6, 9, 9; rows with limits 8, 2 and 0."""
    params = PairParams(jnp.asarray(script(5, 6, 7, 8)), jnp.asarray(script(5, 6, 9, 9)))
    model = fakes.TableModel(GREEDY_V)
    config = SpecConfig(gamma=3, max_new_tokens=8, eos_id=EOS_ID)
    pair = dict(target=model, drafter=ModelDrafter(model), config=config)
    state = jax.jit(functools.partial(speculative.init_state, **pair))(
        params,
        fakes.TableInputs(jnp.zeros(3, jnp.int32)),
        jnp.zeros((3, 1), jnp.int32),
        checks.keys(0, 3),
        prompt_lengths=jnp.ones(3, jnp.int32),
        limits=jnp.array([8, 2, 0]),
    )
    rule = speculative.default_rule(settings(0))
    step = jax.jit(functools.partial(speculative.speculative_step, verify_fn=rule, **pair))
    step = functools.partial(step, settings=settings(0), draft_settings=settings(0))
    state, info = step(state, params)
    assert info.proposal.tokens[0].tolist() == [5, 6, 9]
    assert info.proposal.num_drafted.tolist() == [3, 2, 0]
    assert info.target.probs.shape == (3, 4, GREEDY_V)
    assert info.target.probs[0].argmax(-1)[:3].tolist() == [5, 6, 7]
    assert info.n_accepted.tolist() == [2, 2, 0]
    assert info.num_tested.tolist() == [3, 2, 0]
    assert info.num_new.tolist() == [3, 2, 0]
    assert state.generation.lengths.tolist() == [4, 3, 1]
    assert state.num_rounds.tolist() == [1, 1, 0]
    state, info = step(state, params)
    # 8 is the target's, whatever the draft says; rows that are done count nothing.
    assert info.num_new.tolist()[1:] == info.num_tested.tolist()[1:] == [0, 0]
    assert info.n_accepted.tolist()[1:] == info.proposal.num_drafted.tolist()[1:] == [0, 0]
    assert state.generation.columns.tokens[0, :5].tolist() == [0, 5, 6, 7, 8]
    assert state.generation.lengths.tolist()[1:] == [3, 1]
    result = speculative.finish_speculation(state, config)
    assert result.num_target_calls.tolist() == [2, 1, 0]
    assert result.speculation.accept_counts[1].tolist() == [2] + [-1] * 7
