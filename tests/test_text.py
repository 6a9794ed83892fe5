"""Strings in, strings out: what people who write Python call."""

import jax
import jax.numpy as jnp
import pytest
import toys

from specdec.checkpoints import native
from specdec.checkpoints.strict import CheckpointError
from specdec.drafters import ModelDrafter, SharedEncoderDrafter
from specdec.generation import DRAFT, NONE
from specdec.kernels import library
from specdec.text import load_pair

TEXTS = ["the dog sees a tree today.", "a bird follows."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toys.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def pair(folder):
    return load_pair(folder / "target", folder / "draft", folder / "spiece.model", prefix="go: ")


def test_texts_come_out_as_plain_decoding_has_them(pair):
    plain = pair.decode(TEXTS, max_new_tokens=12, is_plain=True)
    fast = pair.decode(TEXTS, gamma=3, max_new_tokens=12)
    for a, b in zip(plain, fast, strict=True):
        assert (a.text, a.tokens, a.is_complete) == (b.text, b.tokens, b.is_complete)
        assert a.accept_counts == [] and len(b.accept_counts) == b.num_target_calls
        assert NONE not in b.origins and len(b.origins) == len(b.tokens) == len(b.log_probs)


def test_a_second_call_compiles_nothing(pair):
    first = pair.decode(TEXTS, gamma=2, temperature=1.0, max_new_tokens=9)
    again = pair.decode(TEXTS[::-1], gamma=2, temperature=0.5, seed=3, max_new_tokens=9)
    assert first[0].num_compiles >= 1
    assert again[0].num_compiles == 0


def test_a_text_gives_the_same_output_alone_and_beside_longer_ones(pair):
    long = "the dog sees the house at night. " * 4
    alone = pair.decode(TEXTS[:1], gamma=3, max_new_tokens=12)[0]
    beside = pair.decode([TEXTS[0], long], gamma=3, max_new_tokens=12)[0]
    assert alone.tokens == beside.tokens


def test_a_trace_ends_with_the_outputs_last_token(pair):
    output = pair.decode(TEXTS[:1], gamma=3, max_new_tokens=12)[0]
    lines = pair.trace(TEXTS[0], gamma=3, max_new_tokens=12).plain.splitlines()
    assert len(lines) == output.num_target_calls


def test_the_draft_decides_the_drafter(folder, pair):
    assert isinstance(pair.drafter, ModelDrafter)
    shared = load_pair(folder / "target", folder / "shared_draft", folder / "spiece.model")
    assert isinstance(shared.drafter, SharedEncoderDrafter)
    plain = shared.decode(TEXTS, max_new_tokens=12, is_plain=True)
    fast = shared.decode(TEXTS, gamma=3, max_new_tokens=12)
    assert [one.tokens for one in plain] == [one.tokens for one in fast]
    # Its head is short: ids from 30 on it never drafts, and they come out all the same.
    drafted = [
        token
        for one in fast
        for token, origin in zip(one.tokens, one.origins, strict=True)
        if origin == DRAFT
    ]
    assert max(drafted, default=0) < 30 <= max(token for one in fast for token in one.tokens)


@pytest.mark.parametrize("has_kernels", [False, True])
def test_a_drafts_bfloat16_weights_stay_narrow_where_a_kernel_widens_them(
    has_kernels, folder, tmp_path, monkeypatch
):
    params, config = native.load(folder / "draft")
    native.save(tmp_path / "narrow", params, config, storage_dtype=jnp.bfloat16)
    monkeypatch.setattr(library, "is_available", lambda: has_kernels)
    loaded = load_pair(folder / "target", tmp_path / "narrow", folder / "spiece.model")
    kinds = [
        {leaf.dtype.name for leaf in jax.tree.leaves(one)}
        for one in (loaded.params.target, loaded.params.draft)
    ]
    assert kinds == [{"float32"}, {"bfloat16" if has_kernels else "float32"}]
    assert loaded.drafter.model.config.dtype == jnp.float32


@pytest.mark.parametrize(
    "texts, message",
    [([], "no source texts"), (["x", "  "], "source text 1 is empty"), (["a b " * 900], "bucket")],
)
def test_texts_that_make_no_sense_are_refused(pair, texts, message):
    with pytest.raises(ValueError, match=message):
        pair.decode(texts)


def test_a_missing_checkpoint_or_vocabulary_is_named(folder):
    with pytest.raises(CheckpointError, match="nowhere"):
        load_pair(folder / "nowhere", folder / "draft", folder / "spiece.model")
    with pytest.raises(ValueError, match="no vocabulary at"):
        load_pair(folder / "target", folder / "draft", folder / "none.model")


def test_a_draft_for_another_target_is_refused(folder, tmp_path):
    other = toys.config(1, num_encoder_layers=0, encoder_dim=48)
    toys.write_model(tmp_path / "draft", other, 0)
    with pytest.raises(ValueError, match="width 48, the target's has 32"):
        load_pair(folder / "target", tmp_path / "draft", folder / "spiece.model")


def test_a_model_with_fewer_ids_than_its_vocabulary_is_refused(folder, tmp_path):
    toys.write_model(tmp_path / "draft", toys.config(1, vocab_size=32), 0)
    with pytest.raises(ValueError, match="don't belong together"):
        load_pair(folder / "target", tmp_path / "draft", folder / "spiece.model")
