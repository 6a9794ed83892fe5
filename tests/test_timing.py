"""What is timed is done, warmed up and interleaved. How long it takes is not asserted."""

import time

import checks
import jax
import numpy as np
import pytest

from specdec import sampling, timing
from specdec.autoregressive import autoregressive_decode
from specdec.config import SpecConfig
from specdec.speculative import PairParams


def test_a_slow_first_call_is_in_none_of_the_times():
    calls = []

    def slow_at_first():
        calls.append("slow")
        time.sleep(0.2 if len(calls) == 1 else 0)

    times = timing.interleaved({"slow": slow_at_first}, repeats=3)
    assert len(times["slow"]) == 3 and max(times["slow"]) < 0.2


def test_functions_take_turns():
    order = []
    functions = {name: lambda name=name: order.append(name) for name in "ab"}
    timing.interleaved(functions, repeats=2)
    assert order == ["a", "b", "a", "b", "a", "b"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_costs_are_measured_in_target_runs(temperature):
    pair = checks.table_pair(batch_size=2)
    costs = timing.step_costs(
        pair.params,
        pair.inputs,
        pair.prompt,
        checks.keys(0, 2),
        target=pair.target,
        drafter=pair.drafter,
        settings=sampling.settings(temperature),
        config=SpecConfig(gamma=2, max_new_tokens=16),
        seconds=0.01,
        repeats=1,
    )
    assert set(costs) == {"target_seconds", "c", "r"}


def test_costs_leave_out_what_all_chains_share(monkeypatch):
    """5 s of encoder and call, and 2, 3 s a link for target, verification; 4 s a draft."""
    per_link = {timing._target_chain: 2.0, timing._draft_chain: 1.5, timing._verify_chain: 3.0}

    def interleaved(functions, repeats):
        times = {}
        for name, one in functions.items():
            drafts = one.keywords["config"].gamma if one.func is timing._draft_chain else 0
            seconds = per_link[one.func] + 4.0 * drafts
            times[name] = [5.0 + seconds * one.keywords["num_steps"]] * repeats
        return times

    monkeypatch.setattr(timing, "interleaved", interleaved)
    monkeypatch.setattr(timing, "timed", lambda function: (1.0, None))
    nothing = dict(target=None, drafter=None, settings=None)
    costs = timing.step_costs(
        PairParams(None), None, None, None, config=SpecConfig(gamma=2), **nothing
    )
    assert costs == {"target_seconds": 2.0, "c": 2.0, "r": 1.5}


def test_all_links_of_a_chain_are_compiled():
    """XLA removes what nobody reads: each chain must still hold its model's table look-ups."""
    pair = checks.table_pair()
    config = SpecConfig(gamma=2, max_new_tokens=16)
    how = sampling.settings(1.0)
    request = (pair.inputs, pair.prompt, checks.keys(0, 1))
    of_both = dict(drafter=pair.drafter, draft_settings=how)
    for chain, params, static in (
        (timing._target_chain, pair.params.target, {}),
        (timing._draft_chain, pair.params, of_both),
        (timing._verify_chain, pair.params.target, {}),
    ):
        about = dict(target=pair.target, settings=how, config=config, num_steps=4)
        compiled = chain.lower(params, *request, **about, **static).compile()
        assert isinstance(compiled, jax.stages.Compiled)
        assert "while" in compiled.as_text() and "gather" in compiled.as_text()


def test_drafts_are_timed_on_contexts_that_the_target_decodes():
    """A draft that copies costs what those make it cost: not on what it drafted itself."""
    pair = checks.table_pair(batch_size=2)
    config = SpecConfig(gamma=2, max_new_tokens=16)
    how = sampling.settings(0.0)
    keys = checks.keys(0, 2)
    plain = autoregressive_decode(
        pair.params.target,
        pair.inputs,
        pair.prompt,
        keys,
        model=pair.target,
        settings=how,
        config=config,
    )
    tokens, _ = timing._draft_chain(
        pair.params,
        pair.inputs,
        pair.prompt,
        keys,
        target=pair.target,
        drafter=pair.drafter,
        settings=how,
        draft_settings=how,
        config=config,
        num_steps=16,  # at the end of a text it begins anew, with the same words
    )
    first = pair.prompt.shape[1]
    for row, length in enumerate(plain.lengths):
        written = tokens[row, first : first + length]
        np.testing.assert_array_equal(written, plain.tokens[row, :length])
    assert plain.lengths.max() > 1
