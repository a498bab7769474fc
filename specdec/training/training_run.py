"""The settings of a training run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

from specdec import tasks
from specdec.common.values import Checked, PositiveInt, Seed, check_is
from specdec.engine.placement import Placement
from specdec.models.contract.model import Model, Target, Weights, check_model
from specdec.models.heads import HeadedTarget, Heads, TargetConfig
from specdec.training.look_ahead import LookAhead
from specdec.training.loss import reads_target
from specdec.training.objectives import Objective, TeacherForced
from specdec.training.optimizer import Adafactor


@dataclasses.dataclass(frozen=True)
class TrainRun(Checked):
    """The settings of a training run; gin builds it.

    Args:
      model: the model that is trained, whose `init` draws its parameters with the seed. It may be a
        `models.heads.HeadedTarget`, whose target and heads `LookAhead` trains together.
      task: a task or mixture, or its name.
      lengths: the longest 'inputs' and 'targets' in tokens.
      steps: the total number of updates; a finished run continues if this grows.
      batch_size: texts per step.
      optimizer: the optimizer and its learning rate.
      objective: the loss, such as `TeacherForced()`.
      target: the model that the trained one drafts for, if its outputs are read.
      target_path: the directory of the target's checkpoint.
      initial_path: the directory of a checkpoint that parameters start from, as far as names and
        shapes agree (`begun_with`), for example the target's. None draws all parameters. For a
        HeadedTarget, {'target': .., 'heads': ..}, or one of these two.
      reference_path: the directory of a trained drafter's checkpoint, with which an objective finds
        the tokens that can be learned (`Align.keep`).
      laws_path: the folder that stores the target's distributions, if the objective needs them
        (`Align.top`); runs may share it. None for `laws` in the output directory.
      split: the split to train on.
      seed: of the parameters and of the order of the data.
      buckets: the number of batch widths, each a program to compile (see `training_batches.pack`).
      evaluation_split: the split on which evaluations measure loss and accuracy; None for none.
      best_by: the figure of an evaluation, such as Align's 'mbsu_5', by which the best parameters
        so far are exported. None exports the latest.
      micro_batches: the number of parts of a batch whose gradients are added up one after the
        other. Only the activations of one part are then in memory. Random numbers of an objective
        are drawn for each part, and `Align.keep` is a share of each part.
      rematerialise: whether activations inside layers are computed again for the gradient rather
        than kept, which saves memory for a third more operations.
      placement: the devices. Over a mesh, models are divided by the target's rules as far as
        sizes allow it, and rows lie over `data`. A run may be resumed on other devices.
      log_every: the number of steps between two printed lines.
      evaluate_every: the number of steps between two evaluations.
      checkpoint_every: the number of steps between two checkpoints.
    """

    model: Model
    task: str | tasks.Task
    lengths: Mapping[str, int]
    steps: PositiveInt
    batch_size: PositiveInt
    optimizer: Adafactor = Adafactor()
    objective: Objective = TeacherForced()
    target: Model | None = None
    target_path: str | None = None
    initial_path: str | Mapping[str, str] | None = None
    reference_path: str | None = None
    laws_path: str | None = None
    split: str = "train"
    seed: Seed = 0
    buckets: PositiveInt = 4
    evaluation_split: str | None = None
    best_by: str | None = None
    micro_batches: PositiveInt = 1
    rematerialise: bool = False
    placement: Placement = Placement()
    log_every: PositiveInt = 100
    evaluate_every: PositiveInt = 1000
    checkpoint_every: PositiveInt = 1000

    def __post_init__(self):
        super().__post_init__()
        check_model("TrainRun.model", self.model, Weights)
        remedy = "an objective, such as TeacherForced()"
        check_is("TrainRun.objective", self.objective, Objective, remedy)
        asks = self.objective.reads_target
        if (asks or reads_target(self.model)) and not (self.target and self.target_path):
            who = "model reads its target's encoder (encoded_dim) or states (states_dim)"
            if asks:
                who = f"objective is {type(self.objective).__name__}, which reads a target"
            raise ValueError(
                f"TrainRun.{who}; give that target, and target_path, the directory of its "
                "checkpoint"
            )
        if (read := self.model.states_dim) is not None:
            assert self.target is not None, "it was asked for"
            if read != (width := cast(TargetConfig, self.target.config).emb_dim):
                raise ValueError(
                    f"TrainRun.model reads states of width {read} (states_dim), and the target's "
                    f"are {width} wide; give states_dim = {width}"
                )
        if self.task is None:
            raise ValueError("TrainRun.task is None; give a task, or the name of a registered one")
        if not isinstance(self.model, Heads) and self.model.pad_id != self.pad_id:
            raise ValueError(
                f"TrainRun.model pads with {self.model.pad_id} and its target with {self.pad_id}; "
                "give models with one pad_id"
            )
        check_is("TrainRun.rematerialise", self.rematerialise, bool, "True or False")
        if self.batch_size % self.micro_batches:
            raise ValueError(
                f"TrainRun.micro_batches is {self.micro_batches}, which does not divide the batch "
                f"of {self.batch_size} texts; give a divisor"
            )
        self._check_parts()
        self._check_reference()
        if self.best_by is not None:
            self._check_best()
        for name in ("inputs", "targets"):
            tasks.length_of(self.lengths, name)

    @property
    def reader(self) -> Target:
        """The model that reads the inputs: the target, or the trained model if there is none."""
        if self.target is not None:
            return self.target
        return self.model.target if isinstance(self.model, HeadedTarget) else self.model

    @property
    def pad_id(self) -> int:
        """The id that batches are filled up with."""
        return self.reader.pad_id

    def _check_parts(self) -> None:
        if not isinstance(self.model, HeadedTarget):
            if isinstance(self.initial_path, Mapping):
                raise ValueError(
                    f"TrainRun.initial_path is {self.initial_path!r}, and a "
                    f"{type(self.model).__name__} has no parts; give the directory of a checkpoint"
                )
            return
        if not isinstance(self.objective, LookAhead):
            raise ValueError(
                f"TrainRun.objective is {type(self.objective).__name__}, and the model is a "
                "HeadedTarget, which LookAhead trains; give that, objectives/look_ahead.gin"
            )
        if self.target is not None:
            raise ValueError(
                "TrainRun.target is not read where the model is a HeadedTarget, which has its own; "
                "give None, and initial_path = {'target': the directory of its checkpoint}"
            )
        begun, known = self.initial_path, self.model.parts.keys()
        if begun is not None and not (isinstance(begun, Mapping) and begun.keys() <= known):
            raise ValueError(
                f"TrainRun.initial_path is {begun!r} and the model a HeadedTarget; give the "
                "checkpoints of its parts, {'target': .., 'heads': ..}"
            )

    def _check_reference(self) -> None:
        if self.objective.keep is not None and self.reference_path is None:
            raise ValueError(
                f"the objective keeps {self.objective.keep} of the tokens, chosen by a reference "
                "drafter; give TrainRun.reference_path, the directory of a trained drafter's "
                "checkpoint"
            )
        paths = {
            "reference_path": (self.reference_path, "keep", self.objective.keep),
            "laws_path": (self.laws_path, "top", self.objective.top),
        }
        for name, (path, reads, asked) in paths.items():
            if path is not None and asked is None:
                raise ValueError(
                    f"TrainRun.{name} is {path!r} and the objective does not read "
                    f"it; give Align.{reads}, or leave out {name}"
                )

    def _check_best(self) -> None:
        known = ["accuracy", *self.objective.figures((0.0, 1.0), 1.0)]
        if self.best_by not in known:
            raise ValueError(
                f"TrainRun.best_by is {self.best_by!r}; give a figure of "
                f"{type(self.objective).__name__}: {', '.join(known)}"
            )
        if self.evaluation_split is None:
            raise ValueError(
                f"TrainRun.best_by is {self.best_by!r} but nothing is evaluated; give "
                "evaluation_split"
            )
