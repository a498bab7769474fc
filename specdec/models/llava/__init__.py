"""LLaVA: a LLaMA whose prompts hold pictures, which CLIP's tower reads."""

from specdec.models.llava.clip import ClipConfig
from specdec.models.llava.llava_model import Llava
from specdec.models.llava.llava_network import LlavaConfig

__all__ = ["ClipConfig", "Llava", "LlavaConfig"]
