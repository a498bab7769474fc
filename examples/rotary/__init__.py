"""A family of models outside of the package: decoders alone, with rotary positions.

Importing it makes its checkpoints known, to a gin file too:

    from __gin__ import dynamic_registration
    import rotary  # whose folder is beside the gin file, or in PYTHONPATH
    include 'models/from_checkpoint.gin'
"""

from rotary.model import Rotary, RotaryCache
from rotary.network import RotaryConfig
from specdec.models import families

__all__ = ["Rotary", "RotaryCache", "RotaryConfig"]

families.register(families.Family("rotary", RotaryConfig, Rotary))
