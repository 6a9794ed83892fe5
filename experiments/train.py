"""Trains a target, or drafts on a frozen target, from a gin file (see gin_configs/train/).

A run lives in its output folder and goes on from its newest checkpoint whenever the same command
is given again, after kill -9 too. What a step does depends on the seed and the step number alone,
so a resumed run takes the steps that an uninterrupted one would have taken.
"""

import dataclasses
import logging
import pathlib
import signal
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments import distill, evaluation, hosts
from experiments.batching import Batch, BatchSource, Buckets, make_batch
from experiments.data import Examples, Task, load_examples
from experiments.devices import Devices
from experiments.distill import Objective, Student
from experiments.reporting import Meter, Reports, is_due, report_heldout, report_progress
from experiments.run_state import Checkpoints, Curve, check_identity
from experiments.top_rows import TopRows, TopRowStore
from experiments.update import TrainState, Updater
from specdec.checkpoints import native
from specdec.models import Config, language_model
from specdec.sharding import Layout, in_force
from specdec.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_BUCKETS = Buckets()
_TEACHER_FORCING = Objective()
_REPORTS = Reports()


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What is trained and tested on.

    Attributes:
      vocabulary: path of the SentencePiece model.
      tasks: mixed in training by their weights.
      heldout_tasks: for held-out loss, BLEU and chrF. May be empty.
      buckets: shapes of the batches; pairs longer than the last one are dropped.
      is_cut: cut those to its length instead, as T5 cuts articles.
      num_extra_ids: of the vocabulary, see `Vocabulary`.
    """

    vocabulary: str
    tasks: Sequence[Task]
    heldout_tasks: Sequence[Task] = ()
    buckets: Buckets = _BUCKETS
    is_cut: bool = False
    num_extra_ids: int = 0

    def __post_init__(self):
        if not self.tasks:
            raise ValueError("no tasks: name at least one data file")


class Run:
    """All that stays the same from step to step.

    Raises:
      ValueError: for parts that do not go together, before anything is compiled.
    """

    def __init__(
        self,
        output_dir: str,
        *,
        corpus: Corpus,
        students: Sequence[Student],
        objective: Objective,
        optimizer: Any,
        seed: int,
        layout: Layout | None = None,
    ):
        self.layout = layout
        self.is_cut = corpus.is_cut
        self.output_dir = pathlib.Path(output_dir).resolve()
        self.objective = objective
        self.students = {student.name: student for student in students}
        self.buckets = corpus.buckets
        self.seed = seed
        self.vocabulary = Vocabulary(corpus.vocabulary, corpus.num_extra_ids)
        distill.check_students(students, self.vocabulary)
        self.target = distill.load_target(objective, students, self.vocabulary.num_rows, layout)
        check_identity(output_dir, self._identity(optimizer))
        self.examples = self._load(corpus.tasks)
        self.heldout_examples = self._load(corpus.heldout_tasks) if corpus.heldout_tasks else None
        weights = [task.weight for task in corpus.tasks]
        self.source = BatchSource(self.examples, weights, corpus.buckets, seed=seed)
        self.updater = Updater(
            {name: student.config for name, student in self.students.items()},
            optimizer,
            num_ids=self.vocabulary.num_pieces,
            seed=seed,
            target_config=self.target and self.target.config,
            with_target_logits=self.target is not None and objective.is_distilling,
            frozen={name: student.frozen for name, student in self.students.items()},
        )
        self.top_rows = self._open_top_rows()

    @property
    def target_params(self) -> Any:
        return self.target and self.target.params

    def initial_state(self) -> TrainState:
        """The state before the first step: random weights, or those of an export."""
        params = {}
        for index, (name, student) in enumerate(self.students.items()):
            if student.init_from:
                params[name] = distill.load_initial(student)
            else:
                key = jax.random.fold_in(jax.random.key(self.seed), index)
                params[name] = jax.jit(language_model(student.config).init)(key)
        return self.updater.init(params)

    def placed(self, state: TrainState) -> TrainState:
        """The state where it is to lie. Adafactor's is small: every device holds all of it."""
        # Restored arrays are bound to a device, new ones are not: two programs, unless all are.
        if self.layout is None:
            return jax.device_put(state, jax.devices()[0])
        params = {name: self.layout.place(one) for name, one in state.params.items()}
        rest = self.layout.replicate((state.step, state.opt_state))
        return TrainState(rest[0], params, rest[1])

    def step(self, state: TrainState, step: int, weights: Any, steps: int) -> tuple:
        """State and metrics after one more step, and the batch's target tokens."""
        batch, rows = self.batch_at(step)
        num_tokens = int(batch.target_lengths.sum())
        if self.layout is not None:
            batch, rows = self.layout.place_rows((batch, rows))
        num_steps = jnp.asarray(steps, jnp.float32)
        with in_force(self.layout):
            state, metrics = self.updater.step(
                state, self.target_params, batch, rows, weights, num_steps
            )
        return state, metrics, num_tokens

    def fill_top_rows(self) -> None:
        """Runs the target over the corpus, where its stored rows are asked for."""
        if self.top_rows is not None:
            num_ids = self.vocabulary.num_pieces
            self.top_rows.fill(self.target, self.examples, self.buckets, num_ids=num_ids)

    def batch_at(self, step: int) -> tuple[Batch, TopRows | None]:
        planned = self.source.planned_at(step)
        batch = make_batch(self.examples, planned, self.buckets)
        rows = self.top_rows and self.top_rows.rows(self.examples, planned, self.buckets)
        return batch, rows

    def export(self, params: Any) -> None:
        """Writes the weights: DIR/export, or DIR/export/<name> where there are several."""
        folder = self.output_dir / "export"
        if self.layout is not None:
            params = self.layout.gathered(params)
        if not hosts.is_first():
            return
        for name, student in self.students.items():
            path = folder / name if len(self.students) > 1 else folder
            native.save(path, params[name], student.config.without_training())

    def _load(self, tasks: Sequence[Task]) -> Examples:
        return load_examples(
            tasks,
            self.vocabulary,
            max_lengths=self.buckets.max_lengths,
            cache_dir=str(self.output_dir / "cache"),
            is_cut=self.is_cut,
        )

    def _open_top_rows(self) -> TopRowStore | None:
        size = self.objective.num_top_ids
        if not size or not self.objective.is_distilling:
            return None
        name = f"top{size}-{self.examples.digest}-{distill.weights_digest(self.objective.target)}"
        folder = self.output_dir / "cache" / name
        return TopRowStore(str(folder), len(self.examples.targets), size)

    def _identity(self, optimizer: Any) -> dict[str, Any]:
        """What a continuation shares with its run. What is set for training only may change."""
        return {
            "students": {name: _as_text(one.config) for name, one in self.students.items()},
            "seed": self.seed,
            "vocabulary": self.vocabulary.digest,
            "optimizer": type(optimizer).__name__,
        }


def _as_text(config: Config) -> dict[str, str]:
    """A shape by what is not at its default: what later versions add leaves older runs open."""
    config = config.without_training()
    values = {field: getattr(config, field.name) for field in dataclasses.fields(config)}
    changed = {field.name: str(value) for field, value in values.items() if value != field.default}
    return {"kind": type(config).__name__, **changed}


def train(
    output_dir: str,
    *,
    corpus: Corpus,
    students: Sequence[Student],
    steps: int,
    optimizer: Any,
    objective: Objective = _TEACHER_FORCING,
    reports: Reports = _REPORTS,
    seed: int = 0,
    devices: Devices | None = None,
) -> None:
    """Trains `students` up to step `steps`, going on from where the folder's run stands.

    Args:
      output_dir: the run's folder.
      corpus: text and vocabulary.
      students: what to train, side by side on the same batches.
      steps: of the whole run, those of earlier calls included.
      optimizer: see `optimizers`; its `transform(num_steps)` gives the optax transformation.
      objective: the losses, and the frozen target if there is one.
      reports: how often to report and to save.
      seed: of weights, data order and dropout.
      devices: that students and target lie on, see `Devices`; None = one.

    Raises:
      ValueError: for whatever is wrong with the configuration, before anything is compiled.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}: must be 1 or more")
    pathlib.Path(output_dir).mkdir(parents=True, exist_ok=True)
    run = Run(
        output_dir,
        corpus=corpus,
        students=students,
        objective=objective,
        optimizer=optimizer,
        seed=seed,
        layout=None if devices is None else devices.layouts()[0],
    )
    jax.config.update("jax_compilation_cache_dir", str(run.output_dir / "cache" / "compiled"))
    run.fill_top_rows()
    checkpoints = Checkpoints(output_dir)
    resumed_step = checkpoints.latest_step
    if resumed_step is None:
        state = run.initial_state()
    else:
        state = checkpoints.restore(jax.eval_shape(run.initial_state))
        logger.info("resuming at step %d", resumed_step)
    state = run.placed(state)
    curve = Curve(output_dir, resumed_step=resumed_step or 0)
    try:
        train_until(run, state, steps, reports=reports, checkpoints=checkpoints, curve=curve)
    finally:
        checkpoints.close()


def train_until(
    run: Run,
    state: TrainState,
    steps: int,
    *,
    reports: Reports,
    checkpoints: Checkpoints,
    curve: Curve,
) -> None:
    """Steps, reports and checkpoints until the last step.

    Raises:
      KeyboardInterrupt: when all is saved after a request to stop.
    """
    stop, meter, saved_at = _StopRequest(), Meter(), time.monotonic()
    step = int(state.step)
    while step < steps and not stop.is_requested:
        weights = run.objective.weights_at(step, steps)
        state, metrics, num_tokens = run.step(state, step, weights, steps)
        step += 1
        meter.add(metrics, num_tokens)
        if is_due(step, reports.progress_every, steps):
            epoch, _ = run.source.locate(step - 1)
            report_progress(curve, meter, step=step, steps=steps, epoch=epoch)
        test(run, state.params, step, steps, reports=reports, curve=curve)
        if time.monotonic() - saved_at > 60 * reports.checkpoint_minutes > 0:
            save(run, state, step, checkpoints)
            saved_at = time.monotonic()
        meter.skip()
    save(run, state, step, checkpoints)
    logger.info("%s at step %d of %d", "done" if step >= steps else "stopped", step, steps)
    if step < steps:
        raise KeyboardInterrupt  # so that no script takes it for a run that is done


def test(run: Run, params: Any, step: int, steps: int, *, reports: Reports, curve: Curve) -> None:
    """Held-out losses and translation scores, where they are due."""
    examples = run.heldout_examples
    if examples is None:
        return
    if is_due(step, reports.heldout_every, steps):
        losses = evaluation.heldout_losses(
            run.updater, params, run.target_params, examples=examples, buckets=run.buckets
        )
        report_heldout(curve, "heldout", losses, step=step)
    if is_due(step, reports.scores_every, steps):
        scores = evaluation.translation_scores(
            run.updater,
            params,
            run.target,
            examples=examples,
            indices=evaluation.sample_evenly(examples, reports.num_scored),
            vocabulary=run.vocabulary,
            max_lengths=run.buckets.max_lengths,
        )
        report_heldout(curve, "scores", scores, step=step)


def save(run: Run, state: TrainState, step: int, checkpoints: Checkpoints) -> None:
    """A checkpoint to go on from, and the weights for everyone else."""
    checkpoints.save(step, state)
    run.export(state.params)
    logger.info("saved step %d", step)


class _StopRequest:
    """Turns the first SIGTERM or SIGINT into a tidy end; a second one kills as usual."""

    def __init__(self):
        self.is_requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number, frame):
        self.is_requested = True
        signal.signal(number, signal.SIG_DFL)
