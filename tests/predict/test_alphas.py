"""The acceptance rates that `specdec compile` predicts for: pytest tests/predict/test_alphas.py"""

from __future__ import annotations

import types
from typing import Any

import pytest
from support import tiny_t5

from specdec.cli import compile as command
from specdec.drafters import Autoregressive
from specdec.models.gpt2 import Gpt2, Gpt2Config
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.predict.roofline import PAPER_ALPHAS
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

SIZES = {"vocab_size": 8, "emb_dim": 512, "num_heads": 8, "head_dim": 64, "mlp_dim": 8}
GPT2 = Gpt2Config(**SIZES, num_kv_heads=8, num_decoder_layers=1, stop_ids=(1,))


@pytest.mark.parametrize(
    "model, of_paper", [(T5Target(tiny_t5(8, 512)), True), (Gpt2(GPT2), False)]
)
def test_those_of_the_papers_are_of_t5(model, of_paper):
    """A decoder-only draft that is as wide as theirs has another target."""
    plan = Plan(model, Autoregressive(model, Greedy()), GreedyMatch(), Fixed(2), Greedy(), 8)
    run: Any = types.SimpleNamespace(plan=plan)
    assert (command.acceptance_rates(None, run) == PAPER_ALPHAS[512]) == of_paper
