"""Meshes of eight CPU devices against one device: pytest tests/test_partitioning.py"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections import namedtuple
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support import cells, inside, opcodes, tiny_t5
from tolerances import LOGITS

from specdec import Plan, decode, prefill, row_keys, step
from specdec.drafters import Autoregressive, Blockwise, EarlyExit, Masked
from specdec.models import partitioning
from specdec.models.heads import Heads, HeadsConfig
from specdec.models.llama import Llama, LlamaConfig
from specdec.models.partitioning import Partitioner, Share, check_batch, make_mesh, shardings, share
from specdec.models.t5 import T5Draft, T5DraftConfig, T5Target
from specdec.predict import hlo
from specdec.sampling import Greedy, NoRepeatNGram, Processed, RepetitionPenalty, Sampling
from specdec.schedules import Confidence, Fixed
from specdec.types import DecodeState, Params
from specdec.verifiers import Coupled, GreedyMatch, MinimumBlock, SpeculativeSampling

ROWS, GAMMA, MAX_LENGTH, LAYERS, VOCABULARY = 8, 3, 12, 2, 64
STANDARD = partitioning.standard_logical_axis_rules()
WHOLE = partitioning.replicated_logical_axis_rules()
TINY = tiny_t5(VOCABULARY, 32, 64, heads=8, decoder=LAYERS)
TINIER = dataclasses.replace(TINY, num_decoder_layers=1)
METHODS = {
    "greedy": {"verifier": GreedyMatch(), "sampling": Greedy()},
    "coupled": {"verifier": Coupled(), "sampling": Sampling()},
    "speculative": {"verifier": SpeculativeSampling(), "sampling": Sampling(top_p=0.9)},
}


@functools.cache
def arguments() -> tuple[Params, jax.Array, jax.Array]:
    """A pair that sometimes agrees, keys, and inputs of all lengths."""
    target, draft = (jax.jit(T5Target(tiny).init)(jax.random.key(0)) for tiny in (TINY, TINIER))
    kernel = target["decoder"]["logits_dense"]["kernel"] * 3
    kernel = kernel.at[:, 1].multiply(2)  # rows end at different lengths
    target["decoder"]["logits_dense"]["kernel"] = kernel
    draft["decoder"]["logits_dense"]["kernel"] = kernel
    draft["token_embedder"] = target["token_embedder"]
    inputs = jax.random.randint(jax.random.key(2), (ROWS, 10), 2, VOCABULARY)
    inputs = jnp.where(jnp.arange(10)[None] < 10 - jnp.arange(ROWS)[:, None], inputs, 0)
    return Params(target, draft), row_keys(0, jnp.arange(ROWS)), inputs


def planned(rules, draft_rules, method: str) -> Plan:
    verifier, sampling = METHODS[method]["verifier"], METHODS[method]["sampling"]
    drafter = Autoregressive(T5Target(TINIER, draft_rules), sampling)
    return Plan(T5Target(TINY, rules), drafter, verifier, Fixed(GAMMA), sampling, MAX_LENGTH)


def placed(mesh, rules=STANDARD, draft_rules=WHOLE) -> tuple[Params, jax.Array, jax.Array]:
    places = Params(
        shardings(T5Target(TINY, rules), mesh), shardings(T5Target(TINIER, draft_rules), mesh)
    )
    params, *rows = arguments()
    return jax.device_put(params, places), *jax.device_put(rows, partitioning.rows(mesh))


def decoded(method: str, mesh=None, draft_rules=WHOLE):
    """The output of `decode`, and what its compiled program contains."""
    plan = planned(STANDARD, draft_rules, method)
    given = placed(mesh, draft_rules=draft_rules) if mesh else arguments()
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        program = jax.jit(functools.partial(decode, plan=plan)).lower(*given).compile()
        return program(*given), hlo.read(program.as_text() or "")


@functools.cache
def one_device(method: str):
    output, _ = jax.device_get(decoded(method))
    ends = set(output.length.tolist())
    assert len(ends) > 3 and min(ends) < MAX_LENGTH, "rows end at different lengths"
    accepted, drafted = output.trace.accepted.sum(), output.trace.drafted.sum()
    assert 0.2 < accepted / drafted < 0.8, "drafts are accepted and rejected"
    return output


@pytest.mark.ci
@pytest.mark.parametrize(
    "method, parts",
    cells(METHODS, [1, 2, 4, 8], often=[("greedy", 2)]),
)
def test_a_mesh_changes_no_token(method, parts):
    """In float32 not even a near-tie falls another way, so the statistics are the same as well."""
    mesh = make_mesh(parts)
    output, program = decoded(method, mesh)
    assert_equal(output, one_device(method), mesh)
    every_iteration = [each for each in program.collectives if each.loop]
    asking = {"decode", "catch_up"} if mesh.shape["data"] > 1 else set()
    assert loops_that_ask(every_iteration) == asking
    check_verify_call(every_iteration, mesh)
    once = [each for each in program.collectives if not each.loop]
    assert len(once) <= (1 + 2 * TINY.num_encoder_layers if parts > 1 else 0), "the encoder"


@pytest.mark.slow
def test_a_drafter_may_be_divided_as_well():
    mesh = make_mesh(4)
    output, program = decoded("coupled", mesh, STANDARD)
    assert_equal(output, one_device("coupled"), mesh)
    each_token = opcodes(inside(program.collectives, "extend"))
    assert each_token == {"all-reduce": 1 + 3 * TINIER.num_decoder_layers, "all-gather": 1}


READING = {"num_encoder_layers": 0, "encoded_dim": TINY.emb_dim, "states_dim": TINY.emb_dim}
BLOCK = T5DraftConfig.of(TINIER, vocab_size=VOCABULARY + GAMMA, markov_rank=4, **READING)
ONE, SEVERAL = (HeadsConfig(VOCABULARY, TINY.emb_dim, heads, 16) for heads in (1, GAMMA))
PENALTIES = Processed(Greedy(), (RepetitionPenalty(1.3), NoRepeatNGram(2)))
WIDTHS = Confidence(0.3, buckets=(1, GAMMA))
KEPT = MinimumBlock(GreedyMatch(), 1)  # otherwise hardly any draft is, and states tell nothing
# The drafter's own model, the drafter that runs it, and what else is not as in `METHODS`.
OTHERS = {
    "several widths": (TINIER, lambda model: Autoregressive(model, Greedy()), {"schedule": WIDTHS}),
    "a block of masks": (TINIER, lambda model: Masked(model, Greedy(), GAMMA), {}),
    "penalties": (
        TINIER,
        lambda model: Autoregressive(model, PENALTIES),
        {"schedule": WIDTHS, "sampling": PENALTIES},
    ),
    "first layers": (None, lambda _: EarlyExit(1, Greedy()), {"schedule": WIDTHS}),
    "a head on them": (ONE, lambda head: EarlyExit(1, Greedy(), head), {"schedule": WIDTHS}),
    "masks on states": (BLOCK, lambda m: Masked(m, Greedy(), GAMMA), {"verifier": KEPT}),
    "heads on states": (SEVERAL, lambda heads: Blockwise(heads, Greedy()), {"verifier": KEPT}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_mesh_changes_no_token_of(name, parts):
    """Nor what it proposes. The drafter is whole on each device, the target's states are divided by
    rows, and heads project with a table that is divided."""
    config, drafter_of, others = OTHERS[name]
    params, *rows = arguments()
    given = {"verifier": GreedyMatch(), "schedule": Fixed(GAMMA), "sampling": Greedy()} | others

    def run(mesh):
        rules = (STANDARD, WHOLE) if mesh else ((), ())
        target, model = T5Target(TINY, rules[0]), None
        if config is not None:
            kind = {HeadsConfig: Heads, T5DraftConfig: T5Draft}.get(type(config), T5Target)
            model = kind(config, rules[1])
        own = params["draft"] if config == TINIER else model and model.init(jax.random.key(5))
        trees, texts = Params(params["target"], own or ()), rows
        if mesh:
            places = Params(shardings(target, mesh), shardings(model, mesh) if model else ())
            trees, texts = jax.device_put(trees, places), placed(mesh)[1:]
        plan = Plan(target, drafter_of(model), max_length=MAX_LENGTH, **given)
        with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
            return decode(trees, *texts, plan)

    output, mesh = jax.device_get(run(None)), make_mesh(parts)
    assert_equal(run(mesh), output, mesh)
    assert len(np.unique(output.trace.proposed)) > 5
    if given["schedule"] == WIDTHS:
        assert len(set(output.trace.drafted[output.trace.drafted > 0].tolist())) > 1


def assert_equal(output, alone, mesh) -> None:
    for name in ("tokens", "length", "trace"):
        jax.tree.map(np.testing.assert_array_equal, getattr(output, name), getattr(alone, name))
    np.testing.assert_allclose(output.log_probs, alone.log_probs, rtol=0, atol=LOGITS)
    assert output.tokens.sharding.is_equivalent_to(partitioning.rows(mesh), 2)


def loops_that_ask(collectives) -> set[str]:
    """Loops that end when all rows have, on whichever device: one boolean per iteration."""
    return {each.loop[-1] for each in collectives if each.shape == "pred[]"}


def check_verify_call(collectives, mesh) -> None:
    """Three sums per decoder layer, one for the embedding, the logits gathered once: no more."""
    others = [each for each in collectives if each.shape != "pred[]"]
    assert all("/verify/" in each.scope for each in others), "neither draft nor accept"
    if mesh.shape["model"] == 1:
        assert not others
        return
    kinds = opcodes(others)
    assert kinds == {"all-reduce": 1 + 3 * LAYERS, "all-gather": 1}
    (gathered,) = (each for each in others if each.opcode == "all-gather")
    assert gathered.bytes == 4 * ROWS // mesh.shape["data"] * (GAMMA + 1) * VOCABULARY


class Stepped(NamedTuple):
    mesh: Mesh
    before: DecodeState
    after: DecodeState
    program: hlo.Module


@pytest.fixture(
    scope="module",
    params=[4, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)],
)
def stepped(request) -> Stepped:
    """One `step`, after `prefill`, on a mesh."""
    mesh = make_mesh(request.param)
    params, keys, inputs = placed(mesh)
    plan = planned(STANDARD, WHOLE, "greedy")
    with jax.set_mesh(mesh):
        before = prefill(params, keys, inputs, plan)
        program = step.lower(params, before, plan).compile()
        after = program(params, before)
    return Stepped(mesh, before, after, hlo.read(program.as_text() or ""))


@pytest.mark.ci
def test_step_leaves_every_array_where_it_is(stepped):
    def check(path, before, after):
        where = f"{jax.tree_util.keystr(path)}: {before.sharding} -> {after.sharding}"
        assert before.sharding.is_equivalent_to(after.sharding, before.ndim), where

    jax.tree_util.tree_map_with_path(check, stepped.before, stepped.after)


@pytest.mark.ci
def test_caches_are_divided_by_rows_and_heads(stepped):
    def arrays(cache):
        return *cache.keys, *cache.values, *cache.cross_keys, *cache.cross_values

    def all_are(axes, cache):
        wanted = NamedSharding(stepped.mesh, PartitionSpec(*axes))
        return all(each.sharding.is_equivalent_to(wanted, 4) for each in arrays(cache))

    assert all_are(("data", "model"), stepped.before.cache)
    assert all_are(("data",), stepped.before.drafter.cache), (
        "its model is whole, only rows are divided"
    )


def test_collectives_of_a_step(stepped):
    collectives = stepped.program.collectives
    asking = {"catch_up"} if stepped.mesh.shape["data"] > 1 else set()
    assert loops_that_ask(collectives) == asking
    check_verify_call(collectives, stepped.mesh)


@pytest.mark.slow
def test_constraints_are_in_the_lowered_program():
    """Linen leaves them out without a word where it sees no mesh or no rules."""
    shapes = jax.eval_shape(arguments)

    def lowered(rules, mesh) -> str:
        plan = planned(rules, rules, "greedy")
        with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
            state = jax.eval_shape(functools.partial(prefill, plan=plan), *shapes)
            return step.lower(shapes[0], state, plan).as_text()

    text = lowered(STANDARD, make_mesh(4))
    residual = f'[{{"data"}}, {{}}, {{}}]> : tensor<{ROWS}x{GAMMA + 1}x{TINY.emb_dim}xf32>'
    layers = (LAYERS, TINIER.num_decoder_layers)  # of the verify call, and of one to catch up
    assert text.count(residual) == sum(1 + 3 * count for count in layers)
    cache = f'[{{"data"}}, {{"model"}}, {{}}, {{}}]> : tensor<{ROWS}x{TINY.num_heads}x'
    assert text.count(cache) >= 4 * sum(layers)
    divided = re.compile(r'sharding_constraint .*"(?:data|model)"')
    for rules, mesh in (((), make_mesh(4)), (STANDARD, None)):
        assert not divided.search(lowered(rules, mesh))


@pytest.mark.parametrize(
    "parts, devices, message",
    [
        (16, 8, "num_partitions is 16 but there are 8 devices; give 1, 2, 4 or 8"),
        (2, 1, "num_partitions is 2 but there is 1 device; give 1"),
        (3, 8, "num_partitions is 3, which does not divide 8 devices; give 1, 2, 4 or 8"),
        (4, 6, "num_partitions is 4, which does not divide 6 devices; give 1, 2, 3 or 6"),
    ],
)
def test_a_mesh_that_the_devices_do_not_make(parts, devices, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Partitioner(parts).mesh(jax.devices()[:devices])


@pytest.mark.parametrize(
    "change, parts, message, works, axis",
    [
        (
            {"num_heads": 6, "head_dim": 64},  # 384 columns could be divided, but not the heads
            4,
            "decoder/relpos_bias/rel_embedding has 6 heads, which a mesh of 2 (data) x 4 (model) "
            "cannot divide by 4; use 1 or 2 on 'model', or the rules ('heads', None) and "
            "('joined_kv', None)",
            2,
            "heads",
        ),
        (
            {"vocab_size": 63},
            2,
            "decoder/logits_dense/kernel has 63 vocab, which a mesh of 4 (data) x 2 (model) "
            "cannot divide by 2; use 1 on 'model', or the rule ('vocab', None)",
            1,
            "vocab",
        ),
        (
            {"mlp_dim": 36},
            8,
            "decoder/layers_0/mlp/wi_0/kernel has 36 mlp, which a mesh of 1 (data) x 8 (model) "
            "cannot divide by 8; use 1, 2 or 4 on 'model', or the rule ('mlp', None)",
            4,
            "mlp",
        ),
    ],
)
def test_what_cannot_be_divided_is_named_with_what_works(change, parts, message, works, axis):
    config = dataclasses.replace(TINY, **change)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        shardings(T5Target(config, STANDARD), make_mesh(parts))
    shardings(T5Target(config, STANDARD), make_mesh(works))
    shardings(T5Target(config, ((axis, None), *STANDARD)), make_mesh(parts))


def test_parameters_are_divided_by_the_rules():
    """As Megatron-LM does: what begins a sub-layer by columns, what ends it by rows."""
    mesh = make_mesh(4)
    places = shardings(T5Target(TINY, STANDARD), mesh)
    layer = places["decoder"]["layers_0"]
    columns, rows = PartitionSpec(None, "model"), PartitionSpec("model", None)
    assert layer["self_attention"]["query"]["kernel"] == NamedSharding(mesh, columns)
    assert layer["self_attention"]["out"]["kernel"].spec == rows
    assert (layer["mlp"]["wi_1"]["kernel"].spec, layer["mlp"]["wo"]["kernel"].spec) == (
        columns,
        rows,
    )
    assert layer["pre_mlp_layer_norm"]["scale"].spec == PartitionSpec(None)
    assert places["token_embedder"]["embedding"].spec == rows
    whole = shardings(T5Target(TINY, WHOLE), mesh)
    assert all(place.is_fully_replicated for place in jax.tree.leaves(whole))


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"num_partitions": 0},
            "Partitioner.num_partitions is 0; give a positive integer, or None",
        ),
        (
            {"logical_axis_rules": (("heads", "modle"),)},
            "logical_axis_rules divides 'heads' over 'modle'; the mesh has 'data' and 'model'",
        ),
        (
            {"draft_logical_axis_rules": ("heads", "model")},
            "draft_logical_axis_rules is ('heads', 'model'); give pairs of a logical axis and a "
            "mesh axis, as in (('heads', 'model'), ('embed', None))",
        ),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Partitioner(**options)


def test_a_rule_with_an_axis_that_the_mesh_lacks():
    with pytest.raises(ValueError, match="divides 'mlp' over 'modle'; the mesh has 'data' and"):
        shardings(T5Target(TINY, (("mlp", "modle"),)), make_mesh(4))


def test_no_partitions_is_no_mesh():
    assert Partitioner().mesh() is None
    lists: Any = [["heads", "model"]]  # from gin
    assert Partitioner(2, lists) == Partitioner(2, (("heads", "model"),))


def test_a_batch_that_the_mesh_does_not_divide():
    check_batch(8, make_mesh(2))
    message = "batch_size is 6, which a mesh of 4 (data) x 2 (model) cannot divide by 4; give a "
    with pytest.raises(ValueError, match="^" + re.escape(message + "multiple of 4, or 8 num_part")):
        check_batch(6, make_mesh(2))


class Hosts(NamedTuple):
    """What `share` looks at of a mesh: which host each device belongs to."""

    devices: np.ndarray

    @property
    def shape(self) -> dict[str, int]:
        return dict(zip(("data", "model"), self.devices.shape, strict=True))

    @classmethod
    def of(cls, owners: list[int], num_partitions: int) -> Any:
        device = namedtuple("device", "process_index")
        devices = np.empty(len(owners), object)
        devices[:] = [device(owner) for owner in owners]
        return cls(devices.reshape(-1, num_partitions))


@pytest.mark.parametrize(
    "owners, num_partitions, shares",
    [
        ([0] * 4 + [1] * 4, 4, [(0, 2, True, (0,)), (1, 2, True, (1,))]),
        ([0] * 4 + [1] * 4, 2, [(0, 2, True, (0, 1)), (1, 2, True, (2, 3))]),
        ([0] * 4 + [1] * 4, 8, [(0, 1, True, (0,)), (0, 1, False, (0,))]),
        (
            [2, 2, 0, 0, 1, 1, 3, 3],
            4,
            [(0, 2, True, (0,)), (1, 2, True, (1,)), (0, 2, False, (0,)), (1, 2, False, (1,))],
        ),
        ([0, 0, 1, 1] * 2, 2, [(0, 2, True, (0, 2)), (1, 2, True, (1, 3))]),
    ],
)
def test_what_each_host_feeds(owners, num_partitions, shares):
    mesh = Hosts.of(owners, num_partitions)
    given = [share(mesh, process) for process in range(len(shares))]
    firsts = [each for each in given if each.first]
    assert sorted(row for each in firsts for row in each.rows(ROWS)) == list(range(ROWS))
    assert given == [Share(*each) for each in shares]
    part_of = [row * mesh.shape["data"] // ROWS for row in range(ROWS)]
    for each in given:
        own = [row for row in range(ROWS) if part_of[row] in each.parts]
        assert each.rows(ROWS).tolist() == own, "a part of the batch is where its devices are"


def test_hosts_that_feed_some_rows_in_common_are_refused():
    message = (
        "a mesh of 3 (data) x 2 (model) over 2 hosts gives them rows in common; use a "
        "num_partitions that divides a host's devices, or that is a multiple of them"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        share(Hosts.of([0, 0, 0, 1, 1, 1], 2), 0)


def test_one_process_feeds_all_rows():
    mesh = make_mesh(2)
    assert share(mesh) == Share(0, 1, True, (0, 1, 2, 3))
    local = np.arange(16).reshape(8, 2)
    fed = partitioning.from_local_rows(local, mesh)
    assert fed.sharding == partitioning.rows(mesh) and np.array_equal(fed, local)


def test_the_heads_of_a_cache_must_be_divided():
    """Where no parameter has them: LLaMA's have joined axes alone."""
    config = LlamaConfig(64, 16, 8, 2, 4, 32, num_decoder_layers=1)
    message = "the cache has 2 heads, which a mesh of 2 (data) x 4 (model) cannot divide by 4"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        shardings(Llama(config, STANDARD), make_mesh(4))
    shardings(Llama(config, STANDARD), make_mesh(2))
    shardings(Llama(config, (("heads", None), *STANDARD)), make_mesh(4))
    fitted = dict(partitioning.fitting(Llama(config), STANDARD, make_mesh(4)))
    assert (fitted["heads"], fitted["joined_kv"], fitted["mlp"]) == (None, None, "model")
