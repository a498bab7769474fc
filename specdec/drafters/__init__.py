"""Drafters: where proposed tokens come from. A new one is one file here (`types.Drafter`)."""

from specdec.drafters.autoregressive import Autoregressive
from specdec.drafters.loop import draft_loop

__all__ = ["Autoregressive", "draft_loop"]
