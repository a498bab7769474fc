"""The settings of an engine, in addition to its plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specdec.checkpoints.generation_settings import Choice
from specdec.common.values import Checked


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Checked):
    """The settings of an engine, which a run and an `InteractiveModel` have as well.

    Args:
      int8: the roles of models whose kernels are rounded to eight bits, which changes their
        outputs.
      int8_tokens: whether the activations that these kernels multiply are rounded as well.
      lossy: whether the output may have another distribution than the target's.
      generation_settings: "obey" the generation settings in the target's checkpoint, or "ignore"
        them; for a Whisper also a `Transcribed`. The ids that outputs start and end with are always
        the checkpoint's.
    """

    int8: Sequence[str] = ()
    int8_tokens: bool = False
    lossy: bool = False
    generation_settings: Choice = "obey"
