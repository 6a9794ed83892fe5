"""What a student learns from: the reference alone, or a frozen target beside it.

Dimensions: B batch, E encoder length, T decoder length, D target width, K real ids.
p is the target, q the student (the draft), always.

Several students can share one pass of the target, which costs far more than they do.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from experiments import losses
from experiments.batching import Batch
from experiments.losses import LossWeights
from specdec.checkpoints import forms, shards, strict
from specdec.models import Config
from specdec.models.gpt import GPT, GPTConfig
from specdec.models.t5 import T5
from specdec.sharding import Layout
from specdec.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Student:
    """A model to train.

    Attributes:
      config: its shape. Of a T5, num_encoder_layers=0 makes a draft that reads the target's encoder
        output.
      name: of its export folder.
      init_from: an export to start from, or the folder of several, of which the one called
        `name` is taken; "" = random weights.
      frozen: groups of its parameters that stay as they start: "encoder", "encoder/layers_0/mlp".

    Raises:
      ValueError: if random weights would stay.
    """

    config: Config
    name: str = "model"
    init_from: str = ""
    frozen: Sequence[str] = ()

    def __post_init__(self):
        object.__setattr__(self, "frozen", tuple(self.frozen))
        if self.frozen and not self.init_from:
            raise ValueError(
                f"{self.name!r} is frozen in {self.frozen}, but starts from random weights: set "
                "init_from, or freeze nothing"
            )

    @property
    def is_encoderless(self) -> bool:
        return not isinstance(self.config, GPTConfig) and self.config.num_encoder_layers == 0


@dataclasses.dataclass(frozen=True)
class Stage:
    """A mix of losses, in force until a share of the run's steps is over.

    Attributes:
      until: in (0, 1]; the last stage's is 1.
      cross_entropy, forward_kl, tvd: the mix, see `losses.LossWeights`.
    """

    until: float = 1.0
    cross_entropy: float = 0.0
    forward_kl: float = 0.0
    tvd: float = 0.0

    @property
    def weights(self) -> LossWeights:
        return LossWeights(self.cross_entropy, self.forward_kl, self.tvd)

    @property
    def is_distilling(self) -> bool:
        return self.forward_kl > 0 or self.tvd > 0


@dataclasses.dataclass(frozen=True)
class Objective:
    """Teacher forcing, distillation, or one after the other.

    Attributes:
      stages: in order of time.
      target: folder of the frozen target; "" = none, for a model that learns from text alone.
      num_top_ids: 0 runs the target in every step; N > 0 stores its N likeliest ids at every
        position first (see `top_rows`) and compares the laws on those.
      mixed_precision: of the target's passes, see `T5Config`.

    Raises:
      ValueError: if the stages do not add up to a run, or distil without a target.
    """

    stages: Sequence[Stage] = (Stage(cross_entropy=1.0),)
    target: str = ""
    num_top_ids: int = 0
    mixed_precision: bool = False

    def __post_init__(self):
        if self.num_top_ids < 0:
            raise ValueError(f"num_top_ids={self.num_top_ids}: must be 0 (off) or more")
        object.__setattr__(self, "stages", tuple(self.stages))
        ends = [stage.until for stage in self.stages]
        if not ends or ends != sorted(ends) or ends[0] <= 0 or ends[-1] != 1.0:
            raise ValueError(f"stages end at {ends}: must ascend from above 0 and end at 1.0")
        for stage in self.stages:
            if min(stage.weights) < 0 or not any(stage.weights):
                raise ValueError(f"{stage}: loss weights must be 0 or more, one of them above 0")
        if self.is_distilling and not self.target:
            raise ValueError("forward_kl or tvd is set without a target: set TARGET to its export")

    @property
    def is_distilling(self) -> bool:
        return any(stage.is_distilling for stage in self.stages)

    def weights_at(self, step: int, num_steps: int) -> LossWeights:
        """The mix of a step (0-based) in a run of `num_steps`."""
        for stage in self.stages:
            if step < stage.until * num_steps:
                return stage.weights
        return self.stages[-1].weights


def check_students(students: Sequence[Student], vocabulary: Vocabulary) -> None:
    """Raises ValueError if names clash or a table does not fit the vocabulary."""
    names = [student.name for student in students]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"students {names}: give at least one, each a name of its own")
    for student in students:
        if student.config.vocab_size != vocabulary.num_rows:
            raise ValueError(
                f"{student.name!r} has vocab_size={student.config.vocab_size}, the vocabulary "
                f"{vocabulary.path!r} needs {vocabulary.num_rows} rows"
            )


def load_initial(student: Student) -> Any:
    """Parameters of the export that a student starts from; ValueError if it is another shape."""
    named = pathlib.Path(student.init_from) / student.name
    params, config = forms.load(named if named.is_dir() else student.init_from)
    config = dataclasses.replace(config, dtype=student.config.dtype)
    if hasattr(config, "num_logits"):  # says which rows of the head are used, not which there are
        config = dataclasses.replace(config, num_logits=student.config.num_logits)
    if config.without_training() != student.config.without_training():
        raise ValueError(
            f"init_from {student.init_from!r} holds {config}, but {student.name!r} is "
            f"{student.config}: start from an export of the same shape"
        )
    names = strict.flatten(params)
    unknown = [group for group in student.frozen if not any(in_groups(n, [group]) for n in names)]
    if unknown or all(in_groups(name, student.frozen) for name in names):
        raise ValueError(
            f"frozen={student.frozen}: name some of {', '.join(sorted(params))}, or of the groups "
            f"within them, but not all; {', '.join(unknown) or 'nothing'} is not among them"
        )
    return params


def in_groups(name: str, groups: Sequence[str]) -> bool:
    """Whether a parameter is in one of some groups.

    Example: "encoder/layers_1/mlp/wo/kernel" is in "encoder" and in "encoder/layers_1/mlp".
    """
    return any(f"{name}/".startswith(f"{group}/") for group in groups)


class Target(NamedTuple):
    """A frozen model. `config` is static, `params` traced."""

    config: Config
    params: Any


class TargetView(NamedTuple):
    """What a target shows its students of a batch.

    Attributes:
      encoded: [B, E, D], None without an encoder.
      log_p: [B, T, K] log-probabilities, None unless a loss asks for them.
    """

    encoded: jax.Array | None
    log_p: jax.Array | None


def load_target(
    objective: Objective,
    students: Sequence[Student],
    num_rows: int,
    layout: Layout | None = None,
) -> Target | None:
    """The frozen target, if there is one, over the devices of a layout if there is one.

    Raises:
      ValueError: if a student needs a target and there is none, or the shapes do not go together.
    """
    encoderless = [student for student in students if student.is_encoderless]
    for student in students:
        if objective.num_top_ids and getattr(student.config, "num_logits", None):
            raise ValueError(
                f"{student.name!r} has num_logits={student.config.num_logits}: the target's top "
                "ids may lie beyond; set num_top_ids=0"
            )
    if not objective.target:
        if encoderless:
            raise ValueError(
                f"{encoderless[0].name!r} has num_encoder_layers=0 and reads a target's encoder "
                "output: set TARGET to the target's export"
            )
        return None
    sharding_fn = None if layout is None else layout.parameter
    params, config = forms.load(objective.target, sharding_fn=sharding_fn)
    if config.vocab_size != num_rows:
        raise ValueError(
            f"target {objective.target!r} has {config.vocab_size} vocabulary rows, the vocabulary "
            f"{num_rows}: train students with the target's own vocabulary"
        )
    for student in students:
        if isinstance(student.config, GPTConfig) != isinstance(config, GPTConfig):
            raise ValueError(
                f"{student.name!r} is a {type(student.config).__name__}, target "
                f"{objective.target!r} a {type(config).__name__}: distil like from like"
            )
    for student in encoderless:
        if (student.config.encoder_dim or student.config.d_model) != config.d_model:
            raise ValueError(
                f"{student.name!r} reads encoder output of width "
                f"{student.config.encoder_dim or student.config.d_model}, the target's is "
                f"{config.d_model}: set its encoder_dim to that"
            )
    return Target(dataclasses.replace(config, mixed_precision=objective.mixed_precision), params)


def weights_digest(path: str) -> str:
    """Identifies an export by its weights, whatever the folder is called."""
    return shards.digest(pathlib.Path(path))


def view_target(
    config: Config, params: Any, batch: Batch, *, num_ids: int, with_logits: bool
) -> TargetView:
    """One pass of the target over a batch, no gradient."""
    params, encoded = jax.lax.stop_gradient(params), None
    if not isinstance(config, GPTConfig):
        encoded = T5(config).apply(
            {"params": params}, batch.inputs, batch.input_lengths, method="encode"
        )
    if not with_logits:
        return TargetView(encoded, None)
    logits = _decoder_logits(config, params, batch, encoded)
    return TargetView(encoded, losses.real_log_probs(logits, num_ids))


def _decoder_logits(config: Config, params: Any, batch: Batch, encoded, **options) -> jax.Array:
    """Logits [B, T, V], over an encoder output [B, E, D] where there is one."""
    variables = {"params": params}
    if isinstance(config, GPTConfig):
        return GPT(config).apply(variables, batch.decoder_inputs, **options)
    over = (encoded, batch.input_lengths, batch.decoder_inputs)
    return T5(config).apply(variables, *over, method="decode", **options)


def student_logits(
    config: Config,
    params: Any,
    batch: Batch,
    view: TargetView,
    *,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Logits [B, T, V] of a student over the batch's targets; dropout where a key is given.

    [B, J, T, V] of one that predicts J tokens ahead: of row t the j-th is for target t + j.
    """
    options: dict[str, Any] = {"deterministic": dropout_key is None}
    if dropout_key is not None:
        options["rngs"] = {"dropout": dropout_key}
    if isinstance(config, GPTConfig) and config.num_ahead > 1:
        options["method"] = GPT.full_pass_ahead
        return GPT(config).apply({"params": params}, batch.decoder_inputs, **options)
    if isinstance(config, GPTConfig) or config.num_encoder_layers == 0:
        return _decoder_logits(config, params, batch, view.encoded, **options)
    return T5(config).apply(
        {"params": params},
        *(batch.inputs, batch.input_lengths, batch.decoder_inputs),
        **options,
    )
