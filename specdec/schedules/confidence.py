"""As long as the drafter is sure of what it proposes."""

from __future__ import annotations

import dataclasses
from typing import Any

from specdec.common.values import Probability
from specdec.schedules.stopping import Signals, Stopping
from specdec.types import Params


@dataclasses.dataclass(frozen=True)
class Confidence(Stopping):
    """Stops after a token whose probability under the draft is below a threshold.

    It is the rule without training of Mamou et al. 2024 (2405.04304), with a threshold of 0.4 in
    Hugging Face's assisted generation.

    threshold: from 0, which never stops, to 1. The probability is the one that the token was drawn
      with; of a greedy draft that of the softmax.
    buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Probability

    def stops(self, params: Params, signals: Signals) -> Any:
        return signals.confidence < self.threshold
