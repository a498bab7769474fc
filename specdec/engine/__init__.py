"""The engine: a plan together with its weights, its vocabulary and its devices."""

from specdec.engine.engine import Engine, NotExact
from specdec.engine.key import drafter_key, fingerprints
from specdec.engine.open_settings import Settings
from specdec.engine.opening import check_eight_bits, in_eight_bits, obeying, saved_vocabulary
from specdec.engine.placement import Placement
from specdec.engine.store import Store

__all__ = [
    "Engine",
    "NotExact",
    "Placement",
    "Settings",
    "Store",
    "check_eight_bits",
    "drafter_key",
    "fingerprints",
    "in_eight_bits",
    "obeying",
    "saved_vocabulary",
]
