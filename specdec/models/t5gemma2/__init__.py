"""The text part of T5Gemma, version 2: encoder-decoders made of Gemma 3."""

from specdec.models.t5gemma2.t5gemma2_model import T5Gemma2, T5Gemma2Config

__all__ = ["T5Gemma2", "T5Gemma2Config"]
