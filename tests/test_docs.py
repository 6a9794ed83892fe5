"""The code in the documents runs as it stands, and the model that one of them defines is sound."""

import pathlib
import re

import contract
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from specdec.drafters import RandomDrafter
from specdec.speculative import PairParams, speculative_decode

ROOT = pathlib.Path(__file__).parent.parent


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def page():
    """The names that the blocks of docs/your_own_model.md define, one after the other."""
    names = {"__name__": "your_own_model"}
    for block in python_blocks((ROOT / "docs/your_own_model.md").read_text("utf-8")):
        exec(block, names)
    return names


def test_your_own_model_decodes_faster_to_the_same_tokens(page):
    plain, fast = page["plain"], page["fast"]
    np.testing.assert_array_equal(fast.tokens, plain.tokens)
    assert (fast.num_target_calls < 0.7 * plain.num_target_calls).all()
    assert fast.lengths.min() >= 20  # neither row ends before anything is seen


def test_a_random_drafter_gives_your_own_models_tokens_as_well(page):
    inputs, prompt, keys = page["request"]
    fast = speculative_decode(
        PairParams(page["params"]),
        inputs,
        prompt,
        keys,
        target=page["target"],
        drafter=RandomDrafter(page["target"].vocab_size),
        **page["how"],
    )
    np.testing.assert_array_equal(fast.tokens, page["plain"].tokens)


def spoil(cache, positions, value):
    """Puts a value in all slots at and beyond positions."""
    is_beyond = (np.arange(cache[0][0].shape[1]) >= positions[:, None])[:, :, None, None]
    return jax.tree.map(lambda slots: jnp.where(is_beyond, value, slots), cache)


CONTRACT = contract.all_checks(spoil)


@pytest.mark.parametrize("check", CONTRACT)
def test_your_own_model_keeps_the_contract(page, check):
    CONTRACT[check](page["target"], page["params"], jnp.zeros((3, 1), jnp.int32))


def test_the_readme_decodes_a_pair(tmp_path, capsys):
    """The blocks under "## Decode" that need nothing but paths of a pair, put in here."""
    toys.write_vocabulary(tmp_path / "spiece.model")
    for seed, name in enumerate(("target", "draft")):
        toys.write_model(tmp_path / name, toys.config(1), seed)
    section = (ROOT / "README.md").read_text("utf-8").split("## Decode")[1].split("\n## ")[0]
    blocks = [block for block in python_blocks(section) if "load_pair(" in block]
    assert blocks
    paths = [str(tmp_path / name) for name in ("target", "draft", "spiece.model")]
    call = "load_pair({!r}, {!r}, {!r}".format(*paths)
    names = {}
    for block in blocks:
        exec(re.sub(r'load_pair\(\s*"[^"]*",\s*"[^"]*",\s*"[^"]*"', lambda _: call, block), names)
    outputs = capsys.readouterr().out
    assert "[" in outputs and len(outputs.splitlines()) > 2
