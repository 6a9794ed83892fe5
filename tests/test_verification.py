"""The rules, unbatched: the reference triple by hand, the law by algebra and by enumeration."""

import functools
import itertools
from unittest import mock

import checks
import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from specdec import sampling, verification
from specdec.theory import overlap
from specdec.types import Proposal, Rows
from specdec.verification import (
    acceptance_probs,
    is_accepted,
    lenient_greedy,
    lenient_sampling,
    residual_probs,
    verify_greedy,
    verify_sampling,
)

P = jnp.array([0.2, 0.5, 0.3])
Q = jnp.array([0.6, 0.3, 0.1])
EVERY = jnp.arange(3)


def every(row):
    return jnp.broadcast_to(row, (3, 3))


def proposal(tokens, probs, num_drafted=None):
    num = len(tokens) if num_drafted is None else num_drafted
    return Proposal(jnp.asarray(tokens), jnp.asarray(probs), jnp.int32(num), jnp.int32(num))


def one_hot(ids, size=3):
    return jax.nn.one_hot(jnp.asarray(ids), size)


@functools.partial(jax.jit, static_argnums=0)
def _verdicts(rule, args, target, drafted, keys):
    run = functools.partial(rule, **args)
    return jax.vmap(run, in_axes=(None, None, 0))(target, drafted, keys)


def verdicts(rule, target, drafted, keys):
    """One round under many keys -> (n_accepted [N], next_token [N])."""
    partial = jax.tree_util.Partial(rule) if not isinstance(rule, functools.partial) else rule
    found = _verdicts(partial.func, partial.keywords, target, drafted, keys)
    return np.asarray(found.n_accepted), np.asarray(found.next_token)


GRID = 64
NUM_ROUNDS = 3 * GRID * GRID


@functools.partial(jax.jit, static_argnums=0)
def _rounds(rule, args, p, q, after, tokens, accept_uniforms, next_uniforms):
    def first_and_second(p, q, after, token, accept_uniform, next_uniform):
        drawn = lambda key, size: jnp.stack([accept_uniform, next_uniform])
        target = Rows(*[jnp.stack([p, after])] * 2)
        with mock.patch.object(verification, "uniforms", drawn):
            drafted = proposal(token[None], q[None], 1)
            n, next_token = rule(target, drafted, jax.random.key(0), **args)
        return jnp.where(n > 0, token, next_token), jnp.where(n > 0, next_token, -1)

    return jax.vmap(first_and_second)(p, q, after, tokens, accept_uniforms, next_uniforms)


def rounds(rule, p, q, after, tokens, accept_uniforms, next_uniforms):
    """One draft from q, tested against p, then `after`: (first token [N], second or -1 [N])."""
    args = getattr(rule, "keywords", {})
    rows = [np.broadcast_to(np.asarray(row, np.float32), (NUM_ROUNDS, 3)) for row in (p, q, after)]
    numbers = [np.resize(x, NUM_ROUNDS) for x in (tokens, accept_uniforms, next_uniforms)]
    found = _rounds(getattr(rule, "func", rule), args, *rows, *numbers)
    return [np.asarray(ids) for ids in found]


def enumerated_law(rule, p, q, after=P):
    """The law of the first token over drafts x ~ q and a grid of uniforms; of the second, too."""
    grid = (np.arange(GRID, dtype=np.float32) + 0.5) / GRID
    tokens, accept, choose = (a.ravel() for a in np.meshgrid(np.arange(3), grid, grid))
    first, second = rounds(rule, p, q, after, tokens, accept, choose)
    weights = np.asarray(q)[tokens] / GRID**2
    was_accepted = second >= 0
    law = np.bincount(first, weights, minlength=3)
    return law, np.bincount(second[was_accepted], weights[was_accepted], minlength=3)


# --- the triple by hand ----------------------------------------------------------------------


def test_reference_triple():
    assert float(overlap(P, Q)) == pytest.approx(0.6)
    np.testing.assert_allclose(acceptance_probs(every(P), every(Q), EVERY), [1 / 3, 1, 1], 1e-6)
    np.testing.assert_allclose(residual_probs(P, Q), [0, 0.5, 0.5], atol=1e-6)


def test_output_law_of_the_triple_is_p():
    """B04: with the residual replaced by p it would be [.28, .5, .22]."""
    law, bonus = enumerated_law(verify_sampling, P, Q)
    np.testing.assert_allclose(law, P, atol=0.008)
    # The token after an accepted one comes from p itself, independently: alpha * its law.
    np.testing.assert_allclose(bonus, 0.6 * P, atol=0.008)


def test_argmax_draft_needs_a_one_hot_q():
    """B01: then the law is p again, and acceptance p[argmax q]."""
    q = one_hot(0)
    assert float(overlap(P, q)) == pytest.approx(0.2)
    np.testing.assert_allclose(enumerated_law(verify_sampling, P, q)[0], P, atol=0.008)


@pytest.mark.parametrize("seed", range(4))
def test_output_law_is_p_for_random_rows(seed):
    p, q, after = np.random.default_rng(seed).dirichlet([0.5] * 3, 3).astype(np.float32)
    law, bonus = enumerated_law(verify_sampling, p, q, after)
    np.testing.assert_allclose(law, p, atol=0.016)
    np.testing.assert_allclose(bonus, np.minimum(p, q).sum() * after, atol=0.016)


def test_output_law_is_p_by_algebra():
    assert checks.algebra_error() <= 1e-6


@hypothesis_settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=3))
def test_output_law_is_p_by_algebra_for_any_rows(weights):
    p, q = np.array(weights, np.float32).T + 1e-9 * (np.sum(weights, axis=0) == 0)[:, None]
    error = _algebra(jnp.asarray(p / p.sum()), jnp.asarray(q / q.sum()))
    assert float(error) <= 1e-6


@jax.jit
def _algebra(p, q):
    accepted = q * acceptance_probs(every(p), every(q), EVERY)
    return jnp.abs(accepted + (1 - overlap(p, q)) * residual_probs(p, q) - p).max()


# --- how far the drafts stand ----------------------------------------------------------------


def test_drafts_stand_up_to_the_first_rejection():
    """A later match doesn't count."""
    target = Rows(*[one_hot([0, 1, 2, 1])] * 2)
    keys = checks.keys(0, 20)
    for tokens, n, next_token in (
        ([0, 1, 2], 3, 1),
        ([0, 2, 2], 1, 1),
        ([1, 1, 2], 0, 0),
        ([0, 1, 0], 2, 2),
    ):
        for rule in (verify_sampling, verify_greedy):
            found = verdicts(rule, target, proposal(tokens, one_hot(tokens)), keys)
            assert (found[0] == n).all() and (found[1] == next_token).all()


def test_sampling_and_greedy_rules_agree_on_one_hot_rows():
    """For a one-hot q and for a spread one."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        target = Rows(*[one_hot(rng.integers(0, 3, 4))] * 2)
        tokens = rng.integers(0, 3, 3)
        is_one_hot = rng.random() < 0.5
        q = one_hot(tokens) if is_one_hot else rng.dirichlet([1] * 3, 3).astype(np.float32)
        drafted = proposal(tokens, q, rng.integers(0, 4))
        keys = checks.keys(int(rng.integers(1000)), 20)
        sampled = verdicts(verify_sampling, target, drafted, keys)
        greedy = verdicts(verify_greedy, target, drafted, keys)
        np.testing.assert_array_equal(sampled, greedy)


SPREAD = jnp.array([[0.1, 0.6, 0.3], [0.7, 0.1, 0.2], [0.25, 0.25, 0.5], [0.4, 0.3, 0.3]])


@pytest.mark.parametrize("num_drafted", [0, 1, 2])
def test_after_all_that_was_drafted_the_next_token_comes_from_p_itself(num_drafted):
    """q = p, so that all stand; what lies beyond num_drafted is never looked at."""
    q = SPREAD[:3].at[num_drafted:].set(jnp.nan)
    tokens = jnp.array([1, 0, 2]).at[num_drafted:].set(2**30)
    keys = checks.keys(num_drafted, 4000)
    drafted = proposal(tokens, q, num_drafted)
    n, next_token = verdicts(verify_sampling, Rows(SPREAD, SPREAD), drafted, keys)
    assert (n == num_drafted).all()
    counts = {(i,): int((next_token == i).sum()) for i in range(3)}
    law = {(i,): float(mass) for i, mass in enumerate(SPREAD[num_drafted])}
    assert fakes.chi_square_p_value(counts, law) > 1e-4


def test_tokens_beyond_num_drafted_are_not_accepted():
    """The fourth draft would match."""
    target = Rows(*[one_hot([0, 1, 2, 1])] * 2)
    for rule in (verify_sampling, verify_greedy, lenient_greedy(0.5), lenient_sampling(0.5)):
        drafted = proposal([0, 1, 2], one_hot([0, 1, 2]), 2)
        n, next_token = verdicts(rule, target, drafted, checks.keys(0, 20))
        assert (n == 2).all() and (next_token == 2).all()


@pytest.mark.parametrize("rule", [verify_sampling, verify_greedy, lenient_greedy(0.5)])
def test_gamma_0_is_a_plain_draw(rule):
    target = Rows(one_hot([1]), jnp.array([P]))
    n, next_token = verdicts(
        rule, target, proposal(jnp.zeros(0, int), jnp.zeros((0, 3))), checks.keys(0, 20)
    )
    assert (n == 0).all() and (next_token == 1).all()


# --- boundaries ------------------------------------------------------------------------------


def test_a_uniform_equal_to_the_acceptance_rejects():
    accept = jnp.array([0.0, 0.25, 1 / 3, 1.0])
    assert not is_accepted(accept, accept).any()
    below = jnp.nextafter(accept[1:], jnp.float32(0))
    assert is_accepted(accept[1:], below).all()


def test_impossible_tokens_never_stand():
    """p(x) = 0 with the uniform at 0, the least there is."""
    p = jnp.array([0.0, 0.4, 0.6])
    zeros = np.zeros(1, np.float32)
    choose = np.linspace(0, 0.99, 100, dtype=np.float32)
    first, _ = rounds(verify_sampling, p, Q, P, np.zeros(1, int), zeros, choose)
    assert (first != 0).all()


def test_a_token_that_q_excludes_is_not_accepted():
    p, q = jnp.array([P]), jnp.array([[0.0, 0.5, 0.5]])
    assert float(acceptance_probs(p, q, jnp.array([0]))[0]) == 0


def test_an_empty_residual_is_p():
    np.testing.assert_array_equal(residual_probs(P, P), P)
    np.testing.assert_array_equal(residual_probs(P, jnp.zeros(3)), P)
    # Here q is above p everywhere, by rounding: p - q has no positive entry.
    np.testing.assert_array_equal(residual_probs(P, jnp.nextafter(P, jnp.float32(1))), P)


def near_rows():
    """(p, q) equal or equal but for one ulp, over both directions and every entry: [M, 3] each."""
    cold = sampling.adjusted_probs(jnp.array([8, 7.99999, 0]), sampling.settings(0.01))
    greedy = sampling.adjusted_probs(jnp.array([8, 7.99999, 0]), sampling.settings(0))
    pairs = []
    for p in map(np.asarray, (P, Q, cold, greedy)):
        pairs.append((p, p))
        for i, towards in itertools.product(range(3), (0, 1)):
            q = p.copy()
            q[i] = np.nextafter(p[i], np.float32(towards))
            pairs.append((p, q))
    return np.array(pairs).swapaxes(0, 1)


def test_rows_equal_to_one_ulp_give_neither_nan_nor_an_impossible_id():
    """B06: 12 288 rounds, the largest and least uniforms among them."""
    rng = np.random.default_rng(0)
    p, q = near_rows()
    residual = np.asarray(residual_probs(p, q))
    np.testing.assert_allclose(residual.sum(-1), 1, atol=1e-6)
    assert (residual >= 0).all() and (residual[p == 0] == 0).all()
    which = rng.integers(0, len(p), NUM_ROUNDS)
    p, q = p[which], q[which]
    tokens = np.array([rng.choice(np.flatnonzero(row > 1e-30)) for row in q])
    numbers = np.array([0, 2**-24, 0.5, 1 - 2**-23, 1 - 2**-24, *rng.random(20)], np.float32)
    uniforms = rng.choice(numbers, (2, NUM_ROUNDS))
    first, second = rounds(verify_sampling, p, q, P, tokens, *uniforms)
    assert (first >= 0).all() and (first < 3).all() and (second < 3).all()
    assert (np.take_along_axis(p, first[:, None], axis=1) > 0).all()
    is_equal = (p == q).all(-1)
    assert (second[is_equal] >= 0).all(), "a draft of identical rows was rejected"


# --- lenience --------------------------------------------------------------------------------


def test_lenient_acceptance_by_hand():
    """l = .5: [.2 / .3, 1, 1]; alpha_l = .6 * 2/3 + .3 + .1 = .8."""
    accept = acceptance_probs(every(P), every(Q), EVERY, 0.5)
    np.testing.assert_allclose(accept, [2 / 3, 1, 1], atol=1e-6)
    assert float((Q * accept).sum()) == pytest.approx(0.8)


def test_lenient_law_by_hand():
    """[.4, .3 + .2 * .5, .1 + .2 * .5]: the first reaches its bound .2 / .5."""
    law, bonus = enumerated_law(lenient_sampling(0.5), P, Q)
    np.testing.assert_allclose(law, [0.4, 0.4, 0.2], atol=0.008)
    np.testing.assert_allclose(bonus, 0.8 * P, atol=0.008)


@pytest.mark.parametrize("lenience", [0.1, 0.5, 0.9])
def test_no_token_gets_more_than_p_over_lenience(lenience):
    for seed in range(4):
        p, q = np.random.default_rng(seed).dirichlet([0.4] * 3, 2).astype(np.float32)
        law, _ = enumerated_law(lenient_sampling(lenience), p, q)
        assert (law <= p / lenience + 0.016).all(), (law, p)
        assert law.sum() == pytest.approx(1, abs=1e-4)


def test_lenience_1_is_the_exact_rule_bit_for_bit():
    rng = np.random.default_rng(0)
    for seed in range(60):
        p = rng.dirichlet([0.5] * 3, 4).astype(np.float32)
        q = rng.dirichlet([0.5] * 3, 3).astype(np.float32)
        tokens = rng.integers(0, 3, 3)
        keys = checks.keys(seed, 20)
        exact = verdicts(verify_sampling, Rows(p, p), proposal(tokens, q), keys)
        lenient = verdicts(lenient_sampling(1.0), Rows(p, p), proposal(tokens, q), keys)
        np.testing.assert_array_equal(exact, lenient)


def test_lenient_greedy_compares_the_softmax_before_it_becomes_one_hot():
    """p = [.5, .3, .2], l = .5: id 1 stands, id 2 (.2 < .25) doesn't; the next is the argmax."""
    model_probs = jnp.array([[0.5, 0.3, 0.2]] * 4)
    target = Rows(one_hot([0, 0, 0, 0]), model_probs)
    keys = checks.keys(0, 20)
    for tokens, expected in (([1, 0, 1], 3), ([1, 2, 1], 1), ([2, 0, 0], 0)):
        drafted = proposal(tokens, one_hot(tokens))
        n, next_token = verdicts(lenient_greedy(0.5), target, drafted, keys)
        assert (n == expected).all() and (next_token == 0).all()
        exact, _ = verdicts(lenient_greedy(1.0), target, drafted, keys)
        assert (exact == [t == 0 for t in tokens].index(False)).all()


def test_lenient_greedy_never_lets_a_banned_id_stand():
    target = Rows(one_hot([0, 0, 0, 0]), jnp.array([[0.6, 0.0, 0.4]] * 4))
    drafted = proposal([2, 1, 2], one_hot([2, 1, 2]))
    n, _ = verdicts(lenient_greedy(1e-6), target, drafted, checks.keys(0, 20))
    assert (n == 1).all()


def test_a_tie_with_the_argmax_stands_below_lenience_1_only():
    target = Rows(one_hot([0, 0, 0, 0]), jnp.array([[0.4, 0.4, 0.2]] * 4))
    drafted = proposal([1, 1, 0], one_hot([1, 1, 0]))
    keys = checks.keys(0, 20)
    assert (verdicts(lenient_greedy(0.999), target, drafted, keys)[0] == 3).all()
    assert (verdicts(lenient_greedy(1.0), target, drafted, keys)[0] == 0).all()


def test_lenient_greedy_at_1_is_the_greedy_rule():
    rng = np.random.default_rng(0)
    for seed in range(40):
        model_probs = rng.choice([0.1, 0.2, 0.4], (4, 3)).astype(np.float32)  # ties are common
        model_probs /= model_probs.sum(-1, keepdims=True)
        target = Rows(one_hot(model_probs.argmax(-1)), jnp.asarray(model_probs))
        tokens = rng.integers(0, 3, 3)
        drafted = proposal(tokens, one_hot(tokens), rng.integers(0, 4))
        keys = checks.keys(seed, 20)
        np.testing.assert_array_equal(
            verdicts(verify_greedy, target, drafted, keys),
            verdicts(lenient_greedy(1.0), target, drafted, keys),
        )


@pytest.mark.parametrize("rule", [lenient_sampling, lenient_greedy])
def test_another_lenience_traces_nothing_new(rule):
    num_traces = 0

    @jax.jit
    def run(bound_rule, key):
        nonlocal num_traces
        num_traces += 1
        return bound_rule(Rows(SPREAD, SPREAD), proposal([0, 1, 2], SPREAD[:3]), key)

    for lenience in (1.0, 0.7, 0.1):
        run(rule(lenience), jax.random.key(0))
    assert num_traces == 1
