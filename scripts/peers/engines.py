"""The engines: each holds a run's models, and `generate` makes ids with EOS of ids without padding.

PyTorch, transformers, CTranslate2 and T5X are imported on use.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import tempfile
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specdec import checkpoints
from specdec.decoding import row_keys
from specdec.models.t5 import T5Config
from specdec.types import PyTree

# The names of the tokens that a Whisper's output begins with.
WHISPER_PROMPT = "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"


class Work(NamedTuple):
    """What all engines do alike."""

    lengths: tuple[int, ...]  # of padded inputs; a text gets the next one
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
    if "t5x" in names:
        made["t5x"] = T5X(target, work)
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


def padded(ids: list[int], lengths: Iterable[int]) -> np.ndarray:
    """[1, the next length] int32."""
    length = min(length for length in lengths if length >= len(ids))
    return np.array([ids + [0] * (length - len(ids))], np.int32)


class Specdec:
    """Compiled programs by length of input."""

    def __init__(self, programs: Mapping[int, Any], params: PyTree):
        self._programs, self._params = programs, params
        self._keys = row_keys(0, jnp.array([0]))  # which greedy outputs do not depend on

    def generate(self, ids: list[int]) -> list[int]:
        inputs = padded(ids, self._programs)
        output = self._programs[inputs.shape[1]](self._params, self._keys, inputs)
        tokens, lengths = jax.device_get((output.tokens, output.length))
        return tokens[0, : lengths[0]].tolist()


class T5X:
    """T5X's `predict_batch` with its `temperature_sample` at temperature 0, compiled by length."""

    def __init__(self, checkpoint: Path, work: Work):
        import gin

        with gin.unlock_config():  # T5X's modules are configurable, and the run's settings in force
            from t5x import decoding, models
            from t5x.examples.t5 import network

        config = checkpoints.config_from(checkpoint)
        known = {field.name for field in dataclasses.fields(network.T5Config)}
        sizes = {name: x for name, x in dataclasses.asdict(config).items() if name in known}
        module = network.Transformer(network.T5Config(**sizes, dropout_rate=0.0))
        vocabulary = types.SimpleNamespace(eos_id=work.eos_id, vocab_size=config.vocab_size)
        greedy = functools.partial(decoding.temperature_sample, temperature=0.0, topk=0)
        model = models.EncoderDecoderModel(
            module, vocabulary, vocabulary, optimizer_def=None, decode_fn=greedy
        )
        self._params = checkpoints.load(checkpoint, config=config, dtype=config.dtype)
        self._outputs, self._eos_id = np.zeros([1, work.max_length], np.int32), work.eos_id
        predict = jax.jit(model.predict_batch)
        self._programs = {
            length: predict.lower(self._params, self._batch([1] * length, [length])).compile()
            for length in work.lengths
        }

    def generate(self, ids: list[int]) -> list[int]:
        batch = self._batch(ids, self._programs)
        program = self._programs[batch["encoder_input_tokens"].shape[1]]
        tokens = np.asarray(program(self._params, batch))[0].tolist()
        ends = tokens.index(self._eos_id) + 1 if self._eos_id in tokens else len(tokens)
        return tokens[:ends]

    def _batch(self, ids: list[int], lengths: Iterable[int]) -> dict[str, np.ndarray]:
        inputs = padded(ids, lengths)
        return {"encoder_input_tokens": inputs, "decoder_input_tokens": self._outputs}


class HuggingFace:
    """`generate` of transformers; a model that is compiled has inputs padded to one length."""

    def __init__(self, model: Any, work: Work, *, compiled: bool = False, **options: Any):
        self._model, self._length = model, max(work.lengths) if compiled else 0
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
            model, work, compiled=True, cache_implementation="static"
        ),
    }


def huggingface_t5(checkpoint: Path, work: Work) -> HuggingFace:
    """Returns transformers' T5, with outputs of the longest length."""
    import torch
    import transformers

    torch.set_num_threads(work.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.T5ForConditionalGeneration.from_pretrained(checkpoint, dtype="auto")
    return HuggingFace(model.eval(), work, min_new_tokens=work.max_length)


class Chronos:
    """The pipeline of chronos-forecasting, which draws all samples of a series in one batch."""

    def __init__(self, checkpoint: Path, threads: int, length: int):
        import torch
        from chronos import ChronosPipeline

        torch.set_num_threads(threads)
        self._pipeline = ChronosPipeline.from_pretrained(str(checkpoint), device_map="cpu")
        self._length = length

    def generate(self, values: list[float]) -> list[int]:
        import torch

        torch.manual_seed(0)
        inner, bins = self._pipeline.model, self._pipeline.tokenizer
        ids, mask, scale = bins.context_input_transform(torch.tensor([values]))
        samples = inner(ids, mask, self._length)
        bins.output_transform(samples, scale)
        return samples[0].flatten().tolist()


class CTranslate2:
    """A `Translator` that searches greedily; its tokens are the ids in decimal.

    Its outputs have at least `least` tokens.
    """

    def __init__(self, checkpoint: Path, compute_type: str, work: Work, least: int = 0):
        self._translator = _ctranslate2("Translator", checkpoint, compute_type, work)
        self._options = {
            "beam_size": 1,
            "max_input_length": 0,
            "max_decoding_length": work.max_length,
            "min_decoding_length": least,
            "return_end_token": True,
        }

    def generate(self, ids: list[int]) -> list[int]:
        return self.generate_all([ids], 1)[0]

    def generate_all(self, texts: list[list[int]], rows: int) -> list[list[int]]:
        """Returns the outputs of all texts, in batches that the library sorts by length."""
        given = [list(map(str, ids)) for ids in texts]
        options = {"max_batch_size": rows, "batch_type": "examples", **self._options}
        found = self._translator.translate_batch(given, **options)
        return [[int(token) for token in one.hypotheses[0]] for one in found]


class CTranslate2Decoder:
    """A `Generator` of a decoder, with as many tokens as there may be."""

    def __init__(self, checkpoint: Path, compute_type: str, work: Work):
        self._generator = _ctranslate2("Generator", checkpoint, compute_type, work)
        self._options = {
            "max_length": work.max_length,
            "min_length": work.max_length,
            "sampling_topk": 1,
            "include_prompt_in_result": False,
        }

    def generate(self, ids: list[int]) -> list[int]:
        found = self._generator.generate_batch([list(map(str, ids))], **self._options)
        return list(found[0].sequences_ids[0])


class CTranslate2Whisper:
    """A `Whisper` that searches greedily after a prompt of ids."""

    def __init__(self, checkpoint: Path, compute_type: str, work: Work, prompt: Sequence[int]):
        names = dict(zip(WHISPER_PROMPT, prompt, strict=True)) | {"<|endoftext|>": work.eos_id}
        self._model = _ctranslate2("Whisper", checkpoint, compute_type, work, names)
        self._prompt, self._options = (
            list(prompt),
            {
                "beam_size": 1,
                "max_length": 2 * work.max_length,  # half of it is for a prompt
                "suppress_blank": False,
                "suppress_tokens": [work.eos_id],
            },
        )

    def generate(self, features: np.ndarray) -> list[int]:
        import ctranslate2

        given = ctranslate2.StorageView.from_array(features)
        (found,) = self._model.generate(given, [self._prompt], **self._options)
        return list(found.sequences_ids[0])


class HuggingFaceWhisper:
    """`generate` of transformers' base class, without the rules of long sounds."""

    def __init__(self, checkpoint: Path, work: Work, prompt: Sequence[int]):
        import torch
        import transformers

        torch.set_num_threads(work.threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        read = transformers.WhisperForConditionalGeneration.from_pretrained
        self._model, self._prompt = read(checkpoint, dtype="auto").eval(), list(prompt)
        tokens = {"min_new_tokens": work.max_length, "max_new_tokens": work.max_length}
        self._options = tokens | {"do_sample": False, "num_beams": 1}

    def generate(self, features: np.ndarray) -> list[int]:
        import torch
        from transformers import GenerationMixin

        given = {
            "input_features": torch.from_numpy(features),
            "decoder_input_ids": torch.tensor([self._prompt]),
        }
        found = GenerationMixin.generate(self._model, **given, **self._options)
        return found[0, len(self._prompt) :].tolist()


def _ctranslate2(
    kind: str,
    checkpoint: Path,
    compute_type: str,
    work: Work,
    names: Mapping[str, int] | None = None,
) -> Any:
    """Returns a `Translator`, `Generator` or `Whisper` of a checkpoint, which is converted once."""
    import ctranslate2

    folder = checkpoint.with_name(f"{checkpoint.name}-ctranslate2-{compute_type}")
    if not folder.exists():
        _convert(checkpoint, folder, compute_type, work.eos_id, names or {})
    options = {"compute_type": compute_type, "intra_threads": work.threads}
    module = ctranslate2.models if kind == "Whisper" else ctranslate2
    return getattr(module, kind)(str(folder), device=work.device, **options)


def _convert(
    checkpoint: Path, folder: Path, quantization: str, eos_id: int, names: Mapping[str, int]
) -> None:
    """Makes CTranslate2's directory, which appears when it is complete.

    It scales the logits of all T5s of transformers 5, also where the model does not: no argmax
    changes.
    """
    from ctranslate2.converters import TransformersConverter

    class Ids:
        """In place of a tokenizer; the converter names all ids that this lacks."""

        pad_token, bos_token, eos_token, unk_token = "0", "1", str(eos_id), "2"
        convert_ids_to_tokens = staticmethod(str)

        def get_vocab(self) -> dict[str, int]:
            by_id = {i: str(i) for i in range(size)} | {i: name for name, i in names.items()}
            return {name: i for i, name in by_id.items()}

    class Converter(TransformersConverter):
        def load_tokenizer(self, *arguments: Any, **options: Any) -> Ids:
            return Ids()

    size = checkpoints.config_from(checkpoint).vocab_size
    with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
        made = Converter(str(checkpoint)).convert(f"{staging}/made", quantization=quantization)
        Path(made).rename(folder)
