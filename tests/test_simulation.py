"""Simulated acceptance: the given alpha, and all the work of a real round."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from experiments import paper, records, run
from experiments.benchmarks import simulated as benchmark
from specdec import simulation
from specdec.config import SpecConfig
from specdec.drafters import ModelDrafter
from specdec.kernels import library
from specdec.models import T5LanguageModel
from specdec.sampling import settings
from specdec.speculative import PairParams, init_state, speculative_step
from specdec.types import EncoderInputs, Proposal, Rows, Verdict
from specdec.verification import verify_greedy, verify_sampling

GAMMA, NUM_IDS = 3, 5


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_acceptances_are_geometric_and_capped(alpha):
    p = jnp.full((GAMMA + 1, NUM_IDS), 1 / NUM_IDS)
    drafted = jnp.array(2)
    proposal = Proposal(jnp.zeros(GAMMA, jnp.int32), p[:GAMMA], drafted, drafted)
    rule = simulation.simulated(verify_sampling, alpha)
    keys = jax.random.split(jax.random.key(0), 4000)
    found = jax.vmap(lambda key: rule(Rows(p, p), proposal, key))(keys)
    shares = np.bincount(found.n_accepted, minlength=3) / len(keys)
    np.testing.assert_allclose(shares, [1 - alpha, alpha - alpha**2, alpha**2], atol=0.03)


def test_the_next_token_is_the_rules_own():
    p = jnp.eye(NUM_IDS)[jnp.array([3, 3, 4, 2])]
    full = jnp.array(GAMMA)
    proposal = Proposal(jnp.array([3, 3, 1]), p[:GAMMA], full, full)
    rule = simulation.simulated(verify_greedy, 0.0)
    n_accepted, next_token = rule(Rows(p, p), proposal, jax.random.key(0))
    assert (n_accepted, next_token) == (0, 4)


def test_alpha_outside_0_and_1_is_refused():
    with pytest.raises(ValueError, match=r"alpha=1.2: must lie in \[0, 1\]"):
        simulation.simulated(verify_greedy, 1.2)


def only_draws(target, proposal, key):
    """What a careless simulation does: p and q are left aside, and XLA removes the models."""
    del target
    stands = jax.random.bernoulli(key, 0.5, proposal.tokens.shape)
    return Verdict(jnp.cumprod(stands).sum().astype(jnp.int32), jnp.int32(2))


@pytest.mark.soak
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_simulated_round_takes_the_operations_of_a_real_one(temperature):
    """Counted in the optimised program, so after XLA has removed what nobody consumes."""
    models = T5LanguageModel(toys.config(1)), T5LanguageModel(toys.config(1, d_model=16))
    params = PairParams(*(model.init(jax.random.key(0)) for model in models))
    how = settings(temperature)
    config = SpecConfig(gamma=GAMMA, max_new_tokens=8)
    drafter = ModelDrafter(models[1])
    state = init_state(
        params,
        EncoderInputs(jnp.ones((1, 4), jnp.int32), jnp.array([4])),
        jnp.zeros((1, 1), jnp.int32),
        jax.random.split(jax.random.key(1), 1),
        target=models[0],
        drafter=drafter,
        config=config,
        prompt_lengths=jnp.array([1]),
        limits=jnp.array([8]),
    )
    step = partial(
        speculative_step,
        target=models[0],
        drafter=drafter,
        settings=how,
        draft_settings=how,
        config=config,
    )

    def operations(rule):
        def tokens_of(state, params):
            # The columns that decoding returns, not the counts of betas: those consume p and q.
            return step(state, params, verify_fn=rule)[0].generation.context.tokens

        with library.switched_off():
            compiled = jax.jit(tokens_of).lower(state, params).compile()
        return compiled.cost_analysis()["flops"]

    rule = verify_sampling if temperature else verify_greedy
    real = operations(rule)
    assert operations(simulation.simulated(rule, 0.7)) == pytest.approx(real, rel=0.03)
    assert operations(only_draws) < 0.9 * real


@pytest.mark.soak
def test_a_row_is_timed_labelled_and_not_run_again(tmp_path, monkeypatch, capsys):
    row = paper.TABLES_2_AND_4[0]._replace(gamma=2)

    def simulate():
        benchmark.simulate(
            str(tmp_path),
            target=toys.config(1),
            drafts={"small": toys.config(1, d_model=16)},
            rows=[row],
            source_length=8,
            max_new_tokens=8,
            repeats=2,
            read_bytes=1 << 20,
        )

    simulate()
    found = records.read(str(tmp_path))
    (record,) = found
    assert record["is_simulated"] and record["dtype"] == "bfloat16"
    assert record["alpha"] == row.alpha and record["paper"]["speed"] == row.speed
    assert 1 <= record["tokens_per_call"] <= 3
    assert "Simulated acceptance" in capsys.readouterr().out
    monkeypatch.setattr(benchmark, "measure", None)
    simulate()
    assert records.read(str(tmp_path)) == found


def test_unknown_shapes_and_drafts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no shape 't5_huge'"):
        benchmark.shape_of("t5_huge", "bfloat16")
    with pytest.raises(ValueError, match="the rows ask for base, large, too"):
        benchmark.simulate(str(tmp_path), drafts={"small": "t5_1_1_small"})


def test_the_gin_file_names_what_there_is():
    run.parse_config(["gin_configs/benchmarks/simulated.gin"], [], ["."])
