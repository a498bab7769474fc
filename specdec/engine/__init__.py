"""The engine: a plan together with its weights, its vocabulary and its devices."""

from specdec.engine.engine import Engine, NotExact, in_eight_bits, obeying, saved_vocabulary
from specdec.engine.key import drafter_key, fingerprints
from specdec.engine.placement import Placement

__all__ = [
    "Engine",
    "NotExact",
    "Placement",
    "drafter_key",
    "fingerprints",
    "in_eight_bits",
    "obeying",
    "saved_vocabulary",
]
