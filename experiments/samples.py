"""Texts that a decoder-only model makes up from nothing: unconditional generation."""

import logging
import pathlib
import re

from experiments import distill, records
from experiments.translators import load_translator
from specdec.config import check_count
from specdec.speculative import PairParams
from specdec.text import TextPair
from specdec.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def sample(
    output_dir: str,
    *,
    model: str,
    vocabulary: str,
    num_samples: int = 200,
    batch_size: int = 50,
    temperature: float = 1.0,
    max_new_tokens: int = 128,
    least_words: int = 12,
    seed: int = 0,
) -> None:
    """Writes DIR/samples.tsv, a text a line, no text twice.

    Args:
      output_dir: of the file.
      model, vocabulary: paths.
      num_samples: how many texts.
      batch_size: texts drawn at once.
      temperature: above 0, or all are the same.
      max_new_tokens: most tokens of a text.
      least_words: shorter texts are passed over.
      seed: of the random numbers.

    Raises:
      ValueError: for settings and files that make no sense.
    """
    check_count("num_samples", num_samples, least=1)
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: must be above 0, or all texts are the same")
    words = Vocabulary(vocabulary)
    writer = load_translator(model, words)
    if writer.model.has_encoder:
        raise ValueError(f"{model!r} needs a source to decode: give a decoder-only model")
    about = dict(weights=distill.weights_digest(model), vocabulary=words.digest, seed=seed)
    about |= dict(num_samples=num_samples, temperature=temperature, least_words=least_words)
    records.claim(output_dir, experiment="samples", **about)
    pair = TextPair(writer.model, None, PairParams(writer.params, ()), words)
    texts: dict[str, None] = {}
    how = dict(temperature=temperature, max_new_tokens=max_new_tokens, is_plain=True)
    while len(texts) < num_samples:
        for output in pair.decode([""] * batch_size, seed=seed, **how):
            text = re.sub(r"\s+", " ", output.text).strip()
            if len(text.split()) >= least_words:
                texts[text] = None
        seed += 1
        logger.info("%d of %d texts", min(len(texts), num_samples), num_samples)
    path = pathlib.Path(output_dir) / "samples.tsv"
    path.write_text("".join(f"{text}\n" for text in list(texts)[:num_samples]), encoding="utf-8")
