"""The whole way in three minutes: a toy corpus, a target, a distilled draft, the comparison.

Everything is the real thing at toy size: the trainer, the distillation, the loop. Run again, it
goes on from where it was.
"""

import logging
import pathlib

from experiments.batching import Buckets
from experiments.compare import compare
from experiments.corpora import toy
from experiments.data import FileTask
from experiments.distill import Objective, Stage, Student
from experiments.optimizers import Adafactor, Schedule
from experiments.reporting import Reports
from experiments.train import Corpus, train
from experiments.vocabulary import train_vocabulary
from specdec.models.t5 import T5Config

logger = logging.getLogger(__name__)

PREFIX = "translate English to German: "


def from_scratch(
    output_dir: str,
    *,
    target: T5Config,
    draft: T5Config,
    target_steps: int = 400,
    draft_steps: int = 400,
    num_pairs: int = 20_000,
    num_sentences: int = 60,
    gamma: int = 5,
    seed: int = 0,
) -> None:
    """Makes the corpus, trains both models and compares plain and speculative decoding.

    Args:
      output_dir: of corpus, models and records.
      target, draft: shapes; a draft with num_encoder_layers=0 reads the target's encoder output.
      target_steps, draft_steps: of training.
      num_pairs: sentence pairs to train on.
      num_sentences: to compare on, none of them trained on.
      gamma: drafts per round.
      seed: of everything.
    """
    folder = pathlib.Path(output_dir)
    test, text = folder / "test.tsv", folder / "train.tsv"
    toy.write(test, num_sentences, seed + 1)
    toy.write(text, num_pairs, seed, without=test)
    task = FileTask(str(text), PREFIX)
    if not (folder / "spiece.model").exists():
        train_vocabulary(output_dir, tasks=[task], num_pieces=380)
    corpus = Corpus(
        vocabulary=str(folder / "spiece.model"),
        tasks=[task],
        heldout_tasks=[FileTask(str(test), PREFIX)],
        buckets=Buckets((40, 72), slots_per_batch=1600),
    )
    common = dict(
        corpus=corpus,
        optimizer=Adafactor(Schedule(peak=2e-2, warmup=40, timescale=200, cooldown=0.5)),
        reports=Reports(progress_every=50, heldout_every=0, scores_every=0),
        seed=seed,
    )
    logger.info("training the target")
    train(str(folder / "target"), students=[Student(target)], steps=target_steps, **common)
    exported = str(folder / "target" / "export")
    logger.info("training the draft on the target's distributions")
    train(
        str(folder / "draft"),
        students=[Student(draft)],
        steps=draft_steps,
        objective=Objective([Stage(forward_kl=1.0)], target=exported),
        **common,
    )
    compare(
        output_dir,
        target=exported,
        draft=str(folder / "draft" / "export"),
        vocabulary=corpus.vocabulary,
        task=FileTask(str(test), PREFIX),
        name="from_scratch",
        gamma=gamma,
        max_new_tokens=80,
        num_sentences=num_sentences,
        seed=seed,
    )
