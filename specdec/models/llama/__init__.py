"""LLaMA 1, 2 and 3, and models of the same form such as Sheared-LLaMA and TinyLlama."""

from specdec.models.llama.llama_model import Llama, LlamaConfig

__all__ = ["Llama", "LlamaConfig"]
