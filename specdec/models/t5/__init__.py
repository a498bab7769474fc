"""T5 in all its versions: network, fused kernels, checkpoints, growth, additions for drafting."""

from specdec.models.t5.calm import Calm, calm
from specdec.models.t5.config import T5Config
from specdec.models.t5.drafting import T5Draft, T5DraftConfig, first_ids
from specdec.models.t5.network import T5, T5Target

__all__ = ["T5", "Calm", "calm", "T5Config", "T5Draft", "T5DraftConfig", "T5Target", "first_ids"]
