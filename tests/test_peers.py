"""Other programs on the same weights: what is compared, and that they decode the same model."""

import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import toys

from experiments import records, run
from experiments.benchmarks import peers
from specdec.checkpoints import native
from specdec.text import load_pair
from specdec.types import EncoderInputs
from specdec.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A toy pair whose target is deeper on its decoder's side, and gives the ids that don't exist
    no logits to speak of."""
    folder = toys.write_pair(tmp_path_factory.mktemp("pair"))
    toys.write_model(folder / "target", toys.config(1, num_decoder_layers=2), 0)
    params, config = native.load(folder / "target")
    table = params["token_embedder"]["embedding"]
    num_ids = Vocabulary(folder / "spiece.model").num_ids
    params["token_embedder"]["embedding"] = table.at[num_ids:].set(0.0)
    native.save(folder / "target", params, config)
    return folder


def load(folder, draft="shared_draft"):
    return load_pair(folder / "target", folder / draft, folder / "spiece.model")


def race(folder, output_dir, **changes):
    given = {
        "TARGET": str(folder / "target"),
        "DRAFT": str(folder / "shared_draft"),
        "VOCABULARY": str(folder / "spiece.model"),
        "SENTENCES": str(folder / "sentences.tsv"),
        "MAX_NEW_TOKENS": 12,
        "NUM_SENTENCES": 6,
        "REPEATS": 1,
        **changes,
    }
    bindings = [f"{name} = {value!r}" for name, value in given.items()]
    run.run(["gin_configs/benchmarks/peers.gin"], bindings, ["."], str(output_dir))
    return {row["system"]: row for row in records.read(str(output_dir))}


def test_rows_say_who_is_faster_and_whose_ids_differ(folder):
    pair = load(folder)
    config = pair.config(gamma=2, max_new_tokens=6)
    requests = [pair.request([text], 0) for text, _ in toys.sentences()[:2]]
    ours = peers.our_systems(pair, requests, config)
    ids = [ours[peers.PLAIN](number) for number in range(2)]
    other = [ids[0], [(ids[1][0] + 1) % 100, *ids[1][1:]]]
    outputs = {peers.PLAIN: ids, peers.SPECULATIVE: ids, "int8": ids, "other": other}
    seconds = {name: np.full(2, 1.0) for name in outputs}
    seconds["other"] = np.full(2, 3.0)
    found = {row["system"]: row for row in peers.rows(pair, requests, config, outputs, seconds)}
    assert found["other"]["plain_over"] == [3.0, 3.0, 3.0]
    assert found["other"]["identical"] == 1
    (difference,) = found["other"]["ties"] + found["other"]["others"]
    assert (difference["sentence"], difference["slot"]) == (1, 0)
    assert found[peers.SPECULATIVE]["identical"] == 2
    per_token = found[peers.PLAIN]["seconds_per_token"]
    assert per_token == pytest.approx(2 / found[peers.PLAIN]["num_tokens"])


def test_a_missing_package_is_named_with_its_remedy(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "experiments.baselines.ctranslate2", raising=False)
    with pytest.raises(ValueError, match=r"need ctranslate2: pip install -e '.\[baselines\]'"):
        race(folder, tmp_path)
    with pytest.raises(ValueError, match="gamma=0: must be 1 or more"):
        race(folder, tmp_path, GAMMA=0)


@pytest.fixture
def theirs():
    pytest.importorskip("torch", reason="needs the extra `baselines`")
    pytest.importorskip("ctranslate2", reason="needs the extra `baselines`")
    return pytest.importorskip("experiments.baselines.huggingface")


@pytest.mark.soak
@pytest.mark.parametrize("draft", ["draft", "shared_draft"])
def test_systems_in_float32_give_our_ids(draft, folder, tmp_path, theirs):
    del theirs
    found = race(folder, tmp_path, DRAFT=str(folder / draft))
    assert len(found) == 7
    for name, row in found.items():
        if "int8" not in name:
            assert row["identical"] + len(row["ties"]) == row["num_sentences"], name


@pytest.mark.soak
@pytest.mark.parametrize("draft", ["draft", "shared_draft"])
def test_their_draft_gives_our_drafts_logits(draft, folder, tmp_path, theirs):
    import torch

    from specdec.checkpoints import huggingface

    pair = load(folder, draft)
    huggingface.save(tmp_path / "target", pair.params.target, pair.target.config)
    target = theirs.load(str(pathlib.Path(tmp_path) / "target"))
    config = pair.drafter.model.config
    assistant = theirs.draft_of(pair.params.draft, config, target)
    source, tokens = jnp.array([[5, 9, 14, 1]]), jnp.array([[0, 7, 8, 9]])
    with torch.inference_mode():
        found = assistant(
            input_ids=torch.tensor(np.array(source)),
            decoder_input_ids=torch.tensor(np.array(tokens)),
        ).logits.numpy()
    cache = pair.target.init_cache(pair.params.target, EncoderInputs(source, jnp.array([4])), 5)
    cache = pair.drafter.init(
        pair.params.draft,
        EncoderInputs(source, jnp.array([4])),
        tokens[:, :1],
        cache,
        cache_length=5,
    )
    expected, _ = pair.drafter.model.extend(pair.params.draft, cache, tokens, jnp.array([0]))
    num_logits = config.num_logits or config.vocab_size
    np.testing.assert_allclose(
        found[..., :num_logits], np.asarray(expected)[..., :num_logits], rtol=1e-4, atol=1e-4
    )
    assert np.all(found[..., num_logits:] == -np.inf)
