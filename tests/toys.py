"""A toy language pair on disk: made-up sentences, a vocabulary of them, tiny random T5s."""

import io
import itertools
import pathlib

import jax
import sentencepiece

from specdec.checkpoints import native
from specdec.models import GPTConfig, GPTLanguageModel, T5LanguageModel
from specdec.models.t5 import v1_0

_WORDS = {
    "subject": [("the dog", "der Hund"), ("the cat", "die Katze"), ("a bird", "ein Vogel")],
    "verb": [("sees", "sieht"), ("hears", "hört"), ("follows", "verfolgt")],
    "object": [("the house", "das Haus"), ("a tree", "einen Baum"), ("the man", "den Mann")],
    "end": [("today", "heute"), ("slowly", "langsam"), ("at night", "nachts")],
}


def sentences() -> list[tuple[str, str]]:
    """81 pairs of made-up English and German."""
    return [
        tuple(" ".join(words) + "." for words in zip(*parts, strict=True))
        for parts in itertools.product(*_WORDS.values())
    ]


def write_sentences(path: pathlib.Path, size: int = 81) -> pathlib.Path:
    path.write_text("".join(f"{en}\t{de}\n" for en, de in sentences()[:size]))
    return path


def write_vocabulary(path: pathlib.Path, size: int = 120) -> pathlib.Path:
    """A SentencePiece model in T5's id layout."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for pair in sentences() for text in pair]),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return path


def config(num_layers: int, **changes):
    shape = dict(vocab_size=128, d_model=32, d_ff=48, num_heads=4, head_dim=8)
    layers = dict(num_encoder_layers=num_layers, num_decoder_layers=num_layers)
    return v1_0(**{**shape, **layers, **changes})


def write_model(path: pathlib.Path, config, seed: int, scale: float = 1.8) -> pathlib.Path:
    params = T5LanguageModel(config).init(jax.random.key(seed))
    native.save(path, jax.tree.map(lambda leaf: scale * leaf, params), config)
    return path


def write_pair(folder: pathlib.Path) -> pathlib.Path:
    """folder/{target, draft, shared_draft, spiece.model, sentences.tsv}."""
    write_vocabulary(folder / "spiece.model")
    write_sentences(folder / "sentences.tsv")
    write_model(folder / "target", config(1), 0)
    write_model(folder / "draft", config(1), 1)
    shared = config(1, d_model=16, num_encoder_layers=0, encoder_dim=32, num_logits=30)
    write_model(folder / "shared_draft", shared, 2)
    return folder


def write_language_models(folder: pathlib.Path) -> pathlib.Path:
    """folder/{lm, lm_draft}: two tiny random decoder-only models with the pair's vocabulary."""
    shape = dict(vocab_size=128, d_ff=48, num_heads=4, head_dim=8)
    for name, seed, width in (("lm", 0, 32), ("lm_draft", 1, 16)):
        config = GPTConfig(**shape, d_model=width, num_layers=1)
        native.save(folder / name, GPTLanguageModel(config).init(jax.random.key(seed)), config)
    return folder
