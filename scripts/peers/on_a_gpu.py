"""Times Hugging Face next to ours on the grown pair of devices/xxl.py, interleaved on one GPU.

  PYTHONPATH=.:scripts/devices python scripts/peers/on_a_gpu.py --output_file=FILE [--sizes=tiny]
  python scripts/peers/compare.py --table FILE

The grown pair computes what the embedded pair computes, at the sizes of T5-XXL and T5-small in
bfloat16. transformers gets the same arrays. Its greedy search runs as it is, with the draft as
`assistant_model`, and with a compiled static cache. Needs torch, transformers and gin-config.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too

import engines
import jax
import table
import turns
import xxl
from flax import traverse_util

from specdec.common.environment import environment
from specdec.decoding.program import DecodeProgram, batch_shapes
from specdec.models.t5 import T5Config
from specdec.models.t5.t5_checkpoints import T5Checkpoints
from specdec.types import PyTree

GAMMA = 7
# As many layers on both sides, which transformers' cache needs.
TINY = {
    "small": xxl.t5(16, 1, 32, 2, vocab_size=96, head_dim=16),
    "xxl": xxl.t5(32, 2, 64, 8, vocab_size=96, head_dim=16),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--output_file", required=True, metavar="FILE")
    parser.add_argument("--sizes", choices=xxl.SIZES, default="full", help="tiny: a dry run")
    parser.add_argument("--texts", type=int, default=16, metavar="N")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--not_compiled", action="store_true", help="leave the static cache out")
    args = parser.parse_args()
    backend = jax.default_backend()
    kernels = "fused" if backend == "gpu" else "xla"
    sizes = dataclasses.replace(xxl.SIZES[args.sizes], kernels=kernels)
    if args.sizes == "tiny":
        sizes = dataclasses.replace(sizes, models=TINY)
    row = xxl.Grown(sizes, 0.0, GAMMA)
    device = "cuda" if backend == "gpu" else "cpu"
    work = engines.Work((row.inputs,), row.outputs, 1, GAMMA, os.cpu_count() or 1, device)
    about = {**vars(args), "output_file": None, "kernels": kernels, **environment()}
    file = table.File(args.output_file, about)
    trees = {
        role: model.from_stored(xxl.grown_parameters(model.stored(), role))
        for role, model in row.plan.models().items()
    }
    ready = ours(row, trees) | theirs(row, trees, work, compiled=not args.not_compiled)
    texts = {i: inputs[0][inputs[0] != 0].tolist() for i, inputs in row.texts().items()}
    texts = {i: texts[i] for i in list(texts)[: args.texts]}
    for engine in ready.values():
        for _ in range(turns.WARM_UPS):
            engine.generate(texts[0])
    skip = file.resume(ready)
    for record in turns.measure(ready, texts, repeats=args.repeats, skip=skip, pause=0.0):
        file.write(record)
    print(*table.lines(table.read(args.output_file)), sep="\n")
    return 0


def ours(row: xxl.Grown, trees: dict[str, PyTree]) -> dict[str, Any]:
    """Returns the programs of the target alone and of the pair."""
    found = {}
    for mode, plan in {"alone": row.plan.alone(), "speculative": row.plan}.items():
        owned, shapes = plan.params(trees), batch_shapes(plan.target, 1, row.inputs)
        program = DecodeProgram(plan).compile(owned, *shapes)
        found[mode] = engines.Specdec({row.inputs: program}, owned)
    return found


def theirs(
    row: xxl.Grown, trees: dict[str, PyTree], work: engines.Work, compiled: bool
) -> dict[str, Any]:
    """Returns transformers' engines on the same arrays."""
    models = row.plan.models()
    target, draft = (
        huggingface(models[role].config, models[role].to_stored(trees[role]), work.device)
        for role in ("target", "draft")
    )
    settings = draft.generation_config
    settings.num_assistant_tokens = work.gamma
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    found = {
        "huggingface": engines.HuggingFace(target, work),
        "huggingface_assistant": engines.HuggingFace(target, work, assistant_model=draft),
    }
    if compiled:
        static = {"compiled": True, "cache_implementation": "static"}
        found["huggingface_compiled"] = engines.HuggingFace(target, work, **static)
    return found


def huggingface(config: T5Config, params: PyTree, device: str) -> Any:
    """Returns transformers' T5 with these parameters, in bfloat16."""
    import torch
    import transformers

    record = T5Checkpoints().to_record(config)
    named = {name: value for name, value in record.items() if name != "architectures"}
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**named)).eval()
        torch.set_default_dtype(before)
    state, flat = model.state_dict(), traverse_util.flatten_dict(params, sep="/")
    names = T5Checkpoints().names(config)
    with torch.no_grad():
        for ours, array in flat.items():
            given = torch.from_dlpack(array)
            transposed = T5Checkpoints().is_transposed(ours) and given.ndim == 2
            state[names[ours]].copy_(given.T if transposed else given)
    return model


if __name__ == "__main__":
    sys.exit(main())
