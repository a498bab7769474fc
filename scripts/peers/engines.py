"""The engines: each holds a run's models, and `generate` makes ids with EOS of ids without padding.

PyTorch, transformers and CTranslate2 are imported on use.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec import checkpoints
from specdec.decoding import row_keys
from specdec.models.t5 import T5Config
from specdec.types import PyTree


class Work(NamedTuple):
    """What all engines do alike."""

    length: int  # of padded inputs
    max_length: int  # of outputs, with EOS
    eos_id: int
    gamma: int
    threads: int
    device: str  # as PyTorch and CTranslate2 call it: cpu or cuda


def peers(names: Collection[str], target: Path, draft: Path, work: Work) -> dict[str, Any]:
    """The engines of these names, of Hugging Face checkpoints."""
    made = _huggingface(target, draft, work) if any("hugging" in name for name in names) else {}
    for kind in ("float32", "int8"):
        if f"ctranslate2_{kind}" in names:
            made[f"ctranslate2_{kind}"] = CTranslate2(target, kind, work)
    return {name: made[name] for name in names}


def export(config: T5Config, checkpoint: str, name: str, work_dir: Path) -> Path:
    """A Hugging Face checkpoint of the same parameters, found again by what is in it."""
    params = checkpoints.load(checkpoint, config=config, dtype=config.dtype)
    digest = hashlib.blake2b(repr(config).encode(), digest_size=6)
    for leaf in jax.tree.leaves(params):
        digest.update(np.asarray(leaf).tobytes())
    folder = work_dir / f"{name}-{digest.hexdigest()}"
    if not folder.exists():
        checkpoints.save(folder, params, config=config, format="huggingface")
    return folder


class Specdec:
    """Compiled programs by length of input; a text is padded to the next one."""

    def __init__(self, programs: Mapping[int, Any], params: PyTree):
        self._programs, self._params = dict(sorted(programs.items())), params
        self._keys = row_keys(0, jnp.array([0]))  # which greedy outputs do not depend on

    def generate(self, ids: list[int]) -> list[int]:
        length = next(length for length in self._programs if length >= len(ids))
        inputs = np.zeros([1, length], np.int32)
        inputs[0, : len(ids)] = ids
        output = self._programs[length](self._params, self._keys, inputs)
        tokens, lengths = jax.device_get((output.tokens, output.length))
        return tokens[0, : lengths[0]].tolist()


class HuggingFace:
    """`generate` of transformers; a model that is compiled has inputs padded to one length."""

    def __init__(self, model: Any, work: Work, *, padded: bool = False, **options: Any):
        self._model, self._length = model, work.length if padded else 0
        self._options = options | {
            "max_new_tokens": work.max_length,
            "do_sample": False,
            "num_beams": 1,
            "eos_token_id": work.eos_id,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
        }

    def generate(self, ids: list[int]) -> list[int]:
        import torch

        padding = [0] * (self._length - len(ids))
        inputs = torch.tensor([ids + padding], device=self._model.device)
        mask = (inputs != 0).long()
        return self._model.generate(inputs, attention_mask=mask, **self._options)[0, 1:].tolist()


def _huggingface(target: Path, draft: Path, work: Work) -> Mapping[str, Any]:
    import torch
    import transformers

    torch.set_num_threads(work.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    read = transformers.T5ForConditionalGeneration.from_pretrained
    model, assistant = (read(one, dtype="auto").to(work.device).eval() for one in (target, draft))
    # These are taken from the assistant's own settings, not from what `generate` is given.
    assistant.generation_config.num_assistant_tokens = work.gamma
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    return {
        "huggingface": HuggingFace(model, work),
        "huggingface_assistant": HuggingFace(model, work, assistant_model=assistant),
        "huggingface_lookup": HuggingFace(model, work, prompt_lookup_num_tokens=work.gamma),
        # On a GPU, transformers compiles the steps of a model with a static cache.
        "huggingface_compiled": HuggingFace(
            model, work, padded=True, cache_implementation="static"
        ),
    }


class CTranslate2:
    """A `Translator` that searches greedily; its tokens are the ids in decimal."""

    def __init__(self, checkpoint: Path, compute_type: str, work: Work):
        import ctranslate2

        folder = checkpoint.with_name(f"{checkpoint.name}-ctranslate2-{compute_type}")
        if not folder.exists():
            _convert(checkpoint, folder, compute_type, work.eos_id)
        self._translator = ctranslate2.Translator(
            str(folder),
            device=work.device,
            compute_type=compute_type,
            intra_threads=work.threads,
        )
        self._options = {
            "beam_size": 1,
            "max_input_length": 0,
            "max_decoding_length": work.max_length,
            "min_decoding_length": 0,
            "return_end_token": True,
        }

    def generate(self, ids: list[int]) -> list[int]:
        (result,) = self._translator.translate_batch([[str(i) for i in ids]], **self._options)
        return [int(token) for token in result.hypotheses[0]]


def _convert(checkpoint: Path, folder: Path, quantization: str, eos_id: int) -> None:
    """Makes CTranslate2's directory, which appears when it is complete.

    It scales the logits of all T5s of transformers 5, also where the model does not: no argmax
    changes.
    """
    from ctranslate2.converters import TransformersConverter

    class Ids:
        """In place of a tokenizer; the converter names all ids that this lacks."""

        pad_token, eos_token, unk_token = "0", str(eos_id), "2"
        convert_ids_to_tokens = staticmethod(str)

        def get_vocab(self) -> dict[str, int]:
            return {str(i): i for i in range(size)}

    class Converter(TransformersConverter):
        def load_tokenizer(self, *arguments: Any, **options: Any) -> Ids:
            return Ids()

    size = checkpoints.config_from(checkpoint).vocab_size
    with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
        made = Converter(str(checkpoint)).convert(f"{staging}/made", quantization=quantization)
        Path(made).rename(folder)
