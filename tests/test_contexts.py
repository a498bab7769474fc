"""What jit traces of a drafter's context: pytest tests/test_contexts.py"""

from __future__ import annotations

import jax

from specdec import Context

TRACED = ("tokens", "length", "inputs", "cache", "hidden", "active", "previous", "taught")


def test_arrays_of_a_context_are_traced_and_nothing_else():
    traced = {name: number for number, name in enumerate(TRACED)}
    plain = Context(**traced)
    facts = plain.vocab_size, plain.stop_ids, plain.pad_id, plain.target
    assert facts == (None, (), 0, None) and not plain.shared_noise and not plain.beliefs
    static = {"vocab_size": 11, "stop_ids": (12,), "pad_id": 13, "target": "a model"}
    context = plain.replace(**static, shared_noise=True, beliefs=True)
    assert jax.tree.leaves(context) == list(range(8))
    assert jax.tree.structure(context) != jax.tree.structure(plain)
