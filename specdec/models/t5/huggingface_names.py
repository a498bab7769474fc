"""Explains, in one line, array names that do not belong to a T5 with its output layer.

Wrappers put a prefix before every name, adapters change the names of some kernels, and models with
another head have arrays of that head.
"""

from __future__ import annotations

from collections.abc import Collection

from specdec.models.contract.family import Record

_PARTS = ("shared.", "encoder.", "decoder.", "lm_head.")
_ANCHORS = ("shared.weight", "encoder.block.0.", "decoder.block.0.")
_NEEDED = {"decoder": "decoder.block.", "output layer": "lm_head.weight"}
_ADAPTERS = (".base_layer.", ".lora_A", ".lora_B", ".lora_embedding_", ".ia3_")
# The first part of a prefix: what puts it there, and how the model itself is saved.
_WRAPPERS = {
    "module": ("DistributedDataParallel", "model.module.save_pretrained(DIR)"),
    "_orig_mod": ("torch.compile", "model._orig_mod.save_pretrained(DIR)"),
    "base_model": ("PEFT", "model.merge_and_unload().save_pretrained(DIR)"),
    "_fsdp_wrapped_module": ("FSDP", "the full state_dict of the wrapped model"),
}
_MERGE = "merge the adapter first, model.merge_and_unload().save_pretrained(DIR)"


def check(names: Collection[str], record: Record) -> None:
    """Raises ValueError for names that a T5ForConditionalGeneration does not have."""
    what = ", ".join(record.get("architectures") or ["no architecture"])
    _check_prefix(names, what)
    if adapter := next((n for n in names if any(part in n for part in _ADAPTERS)), None):
        raise ValueError(f"{adapter} is of an adapter that is not merged; {_MERGE}")
    others = sorted(name for name in names if not name.startswith(_PARTS))
    lacks = next((what for what, name in _NEEDED.items() if not _has(names, name)), None)
    if lacks == "decoder" or (lacks and others):
        raise ValueError(
            f"this has no {lacks} ({what} by its record), but {_list(others or sorted(names))}; "
            "give a T5ForConditionalGeneration"
        )


def _check_prefix(names: Collection[str], what: str) -> None:
    for name in names:
        for anchor in _ANCHORS:
            prefix, separator, _ = name.partition(anchor)
            if not separator or not prefix or not prefix.endswith(".") or prefix in _PARTS:
                continue
            if prefix.startswith(_PARTS):
                continue  # of a part with parts of its own
            if outside := sorted(n for n in names if not n.startswith(prefix)):
                raise ValueError(
                    f"this is another model ({what} by its record): a T5 under {prefix!r}, and "
                    f"{_list(outside)}; give a T5ForConditionalGeneration"
                )
            maker, remedy = _WRAPPERS.get(
                prefix.partition(".")[0], ("a wrapper", "the model in it")
            )
            raise ValueError(
                f"the names of its arrays begin with {prefix!r} ({name}), as {maker} writes them; "
                f"save {remedy}"
            )


def _has(names: Collection[str], start: str) -> bool:
    return any(name.startswith(start) for name in names)


def _list(names: Collection[str], limit: int = 3) -> str:
    shown = ", ".join(list(names)[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
