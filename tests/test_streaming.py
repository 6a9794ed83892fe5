"""The stepwise loop is the compiled loop, and a trace shows what happened in it."""

import checks
import jax
import numpy as np
import pytest
from rich.console import Console

from specdec import sampling, trace
from specdec.config import SpecConfig
from specdec.generation import DRAFT
from specdec.speculative import finish_speculation
from specdec.streaming import speculative_rounds

CONFIG = SpecConfig(gamma=3, max_new_tokens=10, eos_id=checks.EOS)


@pytest.fixture(scope="module", params=[0.0, 1.0])
def both(request):
    pair = checks.table_pair(batch_size=3)
    how = sampling.settings(request.param)
    keys = checks.keys(2, 3)
    steps = list(
        speculative_rounds(
            pair.params,
            pair.inputs,
            pair.prompt,
            keys,
            target=pair.target,
            drafter=pair.drafter,
            settings=how,
            config=CONFIG,
        )
    )
    return pair.speculate(keys, CONFIG, how), steps


def test_rounds_on_the_host_give_the_compiled_loops_result(both):
    compiled, steps = both
    stepwise = finish_speculation(steps[-1][0], CONFIG)
    jax.tree.map(np.testing.assert_array_equal, stepwise, compiled)


def test_a_trace_spells_the_output_round_by_round(both):
    compiled, steps = both
    for row in range(3):
        rounds = trace.rounds_of(steps, row)
        spelled = [token for one in rounds for token in one.tokens]
        assert spelled == compiled.tokens[row, : compiled.lengths[row]].tolist()
        assert len(rounds) == compiled.num_target_calls[row]
        num_accepted = sum(len(one.accepted) for one in rounds)
        assert num_accepted == int((compiled.origins[row] == DRAFT).sum())


def test_a_trace_can_be_read_without_colour():
    rounds = [trace.Round((5, 6), 7, 8), trace.Round((5,), None, None)]
    console = Console(width=60, color_system=None)
    with console.capture() as capture:
        console.print(trace.render(rounds, lambda token: f" w{token}"))
    assert capture.get().splitlines()[:2] == ["  1  w5 w6 [-w7-] {+w8+}", "  2  w5"]


def test_a_trace_is_coloured():
    text = trace.render([trace.Round((5,), 7, 8)], str)
    styles = [str(span.style) for span in text.spans]
    assert styles == ["dim", "green", "red strike", "bold blue"]
