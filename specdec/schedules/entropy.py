"""As long as the drafter has few choices."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from specdec.common.values import number
from specdec.schedules.stopping import Signals, Stopping
from specdec.types import Params


@dataclasses.dataclass(frozen=True)
class Entropy(Stopping):
    """Stops after a token that was drawn from a distribution with an entropy above a threshold.

    After Agrawal et al. 2024 (2410.18351), whose bound on acceptance falls with the entropy of the
    draft. It says how sure the drafter is whatever it draws, where `Confidence` looks at the token.

    threshold: in nats, from 0 to log V, which never stops. The distribution is the one that is
      drawn from; of a greedy draft it is the softmax.
    buckets: static ascending draft lengths, see `Schedule`.
    """

    threshold: Annotated[float, number(lambda x: x >= 0, "a number of nats from 0 on, as in 1.5")]

    def stops(self, params: Params, signals: Signals) -> Any:
        return signals.entropy > self.threshold
