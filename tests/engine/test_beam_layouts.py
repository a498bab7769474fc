"""How the models of a search lie in memory: pytest tests/engine/test_beam_layouts.py"""

import jax
import pytest
from support import few

from specdec import checkpoints
from specdec.common import demo
from specdec.decoding.beam_rules import T5XBeams
from specdec.drafters import Autoregressive
from specdec.engine import Engine
from specdec.engine.beam_engine import beam_plan, searching
from specdec.plan import Plan
from specdec.sampling import Greedy
from specdec.schedules import Fixed
from specdec.verifiers import GreedyMatch

PATHS = {"target": demo.path("target"), "draft": demo.path("draft")}


def opened() -> Engine:
    target, draft = (checkpoints.model_from(path) for path in PATHS.values())
    drafter = Autoregressive(draft, Greedy())
    return Engine.open(Plan(target, drafter, GreedyMatch(), Fixed(3), Greedy(), 24), PATHS)


def same(one, other) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, other))


def test_the_models_of_a_search_are_laid_out_for_its_own_calls():
    engine = opened()
    search = searching(engine, beam_plan(engine.plan, 4, T5XBeams(), width=6, depth=3))
    stored = {role: model.stored() for role, model in engine.plan.models().items()}
    assert search.plan.target == stored["target"].laid_out({4 + 6 * 3: 1.0})
    assert search.plan.models()["draft"] == stored["draft"].laid_out({8: 1.0, 6: 2.0})
    plain = search.alone().plan.target
    assert plain == stored["target"].laid_out({4: 1.0}) != engine.alone().plan.target


@pytest.mark.parametrize("loaded", few([True, False]))
def test_parameters_are_read_once_in_the_layout_of_the_search(loaded, monkeypatch):
    engine = opened()
    if loaded:
        engine.load()
        monkeypatch.setattr(checkpoints, "load", None)  # nothing may be read again
    search = searching(engine, beam_plan(engine.plan, 4, T5XBeams()))
    found = search.params
    for role, model in search.plan.models().items():
        theirs = engine.plan.models()[role].to_stored(engine.params[role]) if loaded else None
        kept = model.to_stored(found[role])
        assert same(kept, theirs or checkpoints.load(PATHS[role], config=model.stored().config))
    assert loaded or "params" not in vars(engine)


def test_other_orders_of_products_share_the_arrays():
    engine = opened()
    other = engine.variant(schedule=Fixed(2))
    targets = engine.plan.target, other.plan.target
    assert (
        targets[0].layout.storage == targets[1].layout.storage
        and targets[0].layout != targets[1].layout
    )
    pairs = zip(*(jax.tree.leaves(x.params["target"]) for x in (engine, other)), strict=True)
    assert all(a is b for a, b in pairs)
