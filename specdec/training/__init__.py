"""Training: teacher forcing on any task, with exact resume.

This is the only package that imports optax. Orbax is imported when a run starts.
"""

from specdec.training.alignment import Align
from specdec.training.exits import AllExits, ExitClassifier, ExitHead
from specdec.training.fill_masks import ConfidenceHead, FillMasks
from specdec.training.look_ahead import LookAhead
from specdec.training.loss import Drawn, Frozen, Pairs, Sums, cross_entropy, teacher_forced
from specdec.training.objectives import Objective, TeacherForced
from specdec.training.optimizer import Adafactor, LearningRate
from specdec.training.policy_gradient import FineTuning, PolicyGradient, leave_one_out
from specdec.training.training_batches import Batches
from specdec.training.training_error import TrainingError
from specdec.training.training_loop import train
from specdec.training.training_run import TrainRun
from specdec.training.updates import State, train_step

__all__ = [
    "Adafactor",
    "Align",
    "AllExits",
    "Batches",
    "ConfidenceHead",
    "Drawn",
    "ExitClassifier",
    "ExitHead",
    "FillMasks",
    "FineTuning",
    "LookAhead",
    "Frozen",
    "LearningRate",
    "Objective",
    "Pairs",
    "PolicyGradient",
    "State",
    "Sums",
    "TeacherForced",
    "TrainRun",
    "TrainingError",
    "cross_entropy",
    "leave_one_out",
    "teacher_forced",
    "train",
    "train_step",
]
