"""GPT-2, and models of the same form such as DistilGPT2."""

from specdec.models.gpt2.gpt2_model import Gpt2, Gpt2Config

__all__ = ["Gpt2", "Gpt2Config"]
