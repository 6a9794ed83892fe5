"""Plain decoding: the law of the model itself, under every setting."""

import checks
import fakes
import jax.numpy as jnp
import numpy as np
import pytest

from specdec import sampling
from specdec.config import SpecConfig


@pytest.mark.parametrize("how", [{}, {"temperature": 0.5}, {"top_k": 2, "top_p": 0.8}])
def test_samples_follow_the_enumerated_law(how):
    assert checks.law_p_value(checks.table_pair(), how=how, decode="plain") > 1e-4


def test_greedy_output_is_the_tables_argmax():
    pair = checks.table_pair(6)
    config = SpecConfig(max_new_tokens=8, eos_id=checks.EOS)
    result = pair.plain(checks.keys(0, 1), config, sampling.settings(0))
    prefix = [fakes.START]
    while len(prefix) <= 8 and prefix[-1] != checks.EOS:
        prefix.append(int(fakes.logits_after(np.asarray(pair.params.target), prefix).argmax()))
    assert fakes.sequences(result.tokens, result.lengths) == [tuple(prefix[1:])]
    assert result.num_target_calls[0] == len(prefix) - 1


def test_log_probs_are_those_of_the_law_and_of_the_model():
    pair = checks.table_pair(6)
    config = SpecConfig(max_new_tokens=6, eos_id=checks.EOS)
    how = dict(temperature=0.7, top_k=3)
    result = pair.plain(checks.keys(3, 1), config, sampling.settings(**how))
    (sequence,) = fakes.sequences(result.tokens, result.lengths)
    for slot, token in enumerate(sequence):
        logits = fakes.logits_after(np.asarray(pair.params.target), (fakes.START, *sequence[:slot]))
        law = np.log(fakes.standardized(logits, **how)[token])
        assert result.log_probs[0, slot] == pytest.approx(law, abs=1e-4)
        model = np.log(fakes.softmax(logits)[token])
        assert result.model_log_probs[0, slot] == pytest.approx(model, abs=1e-4)


def test_a_prompt_is_gone_on_from():
    pair = checks.table_pair(6)
    config = SpecConfig(max_new_tokens=5, eos_id=checks.EOS)
    greedy = sampling.settings(0)
    whole = pair.plain(checks.keys(0, 1), config, greedy)
    assert whole.lengths[0] == 5  # else the case below is empty
    prompt = jnp.concatenate([pair.prompt, whole.tokens[:, :2]], axis=1)
    rest = checks.autoregressive.autoregressive_decode(
        pair.params.target,
        pair.inputs,
        prompt,
        checks.keys(0, 1),
        model=pair.target,
        settings=greedy,
        config=config,
    )
    assert rest.tokens[0, :3].tolist() == whole.tokens[0, 2:].tolist()
