"""T5Gemma, version 1: encoder-decoders made of Gemma 2."""

from specdec.models.t5gemma.t5gemma_model import T5Gemma, T5GemmaConfig

__all__ = ["T5Gemma", "T5GemmaConfig"]
