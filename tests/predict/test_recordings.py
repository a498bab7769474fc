"""What a replay makes of recordings, piece by piece: pytest tests/predict/test_recordings.py"""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from support import context_of

from specdec.drafters import Autoregressive, Hybrid, Masked, PromptLookup
from specdec.measure.alphas import Accepted
from specdec.plan import Plan
from specdec.predict.schedule_replay import (
    ByStart,
    Recorded,
    Replayed,
    bound,
    check,
    grouped,
    longest,
    replay,
)
from specdec.sampling import Greedy, Sampling
from specdec.schedules import Confidence, Fixed
from specdec.testing import TableTarget
from specdec.types import Params, Request
from specdec.verifiers import Block, GreedyMatch, SpeculativeSampling

replays: Any = sys.modules[replay.__module__]  # whose name is its function's too
TARGET = TableTarget(8)
MODEL, MASKS = Autoregressive(TARGET, Sampling()), Masked(TableTarget(10), Sampling(), masks=2)


def plan(drafter: Any = MODEL, schedule: Any = Fixed(2), verifier: Any = SpeculativeSampling()):  # noqa: B008 (frozen)
    sampling = Greedy() if verifier == GreedyMatch() else Sampling()
    return Plan(TARGET, drafter, verifier, schedule, sampling, 6)


def tossing(*values: float) -> Any:
    """Coins that are known: as many as are asked for, again from the first."""
    return SimpleNamespace(random=lambda shape: np.resize(np.array(values), shape))


def test_drafts_from_each_start_end_with_the_text():
    starts = replays._Recording(plan(schedule=Fixed(3), verifier=Block()), MODEL, {}, 4).at
    assert starts.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 3], [3, 3, 3]]


def test_a_token_is_kept_where_its_coin_is_below_its_ratio():
    kept = replays._kept(np.array([0.5, 0.5, 0.5, 2.0, 0.0]), tossing(0.2, 0.5, 0.8, 0.99, 0.0))
    assert kept.tolist() == [True, False, False, True, False]


def test_a_token_is_tested_once_but_in_a_block_once_for_each_start():
    recording = {"ratio": [0.5, 0.5, 0.5]}
    coins, stops = tossing(0.2, 0.8, 0.4), plan(schedule=Confidence(0.5, buckets=(2,)))
    found = replays._Recording(stops, MODEL, recording, 3).kept(coins)
    assert found.tolist() == [[True, False], [False, True], [True, True]]
    of_blocks = {"ratio": [[0.5, 0.5]] * 3}
    found = replays._Recording(plan(MASKS), MASKS, of_blocks, 3).kept(coins)
    assert found.tolist() == [[True, False], [True, True], [False, True]]


def test_the_second_token_of_a_block_is_kept_by_what_the_first_left():
    """Ratios 0.5 and 2 leave 1 and 0.5, by which the next ratios are divided."""
    ratios = np.array([[0.5, 0.6], [4.0, 0.15]])
    kept = replays._kept_of_blocks(ratios, tossing(0.5, 0.55))
    assert kept.tolist() == [[False, True], [True, True]]
    kept = replays._kept_of_blocks(ratios, tossing(0.61, 0.61))
    assert kept.tolist() == [[False, False], [True, False]]
    # A token that could be afforded is worth no more than one: 0.9 of 1 is above 0.8.
    assert replays._kept_of_blocks(np.array([[0.5, 0.9]]), tossing(0.8)).tolist() == [[False, True]]
    by_block = replays._Recording(plan(MASKS, verifier=Block()), MASKS, {"ratio": ratios}, 2)
    assert by_block.kept(tossing(0.5, 0.55)).tolist() == [[False, True], [True, True]]


def test_what_is_recorded_of_a_block_is_cut_to_the_longest_draft():
    recording = replays._Recording(plan(MASKS), MASKS, {"proposed": [[1, 2, 3], [4, 5, 6]]}, 2)
    assert recording.of_drafts("proposed").tolist() == [[1, 2], [4, 5]]
    stops = plan(schedule=Confidence(0.5, buckets=(2,)))
    recording = replays._Recording(stops, MODEL, {"proposed": [7, 8]}, 2)
    assert recording.of_drafts("proposed").tolist() == [[7, 8], [8, 8]]


def text_of(proposed, output=(3, 4, 1), name="Autoregressive", index=0) -> Accepted:
    """A text of an input that holds all of it, and what a greedy drafter says along it."""
    drafts, inputs = {name: {"proposed": proposed}}, [2, 3, 4, 1]
    return Accepted(index, len(output), {}, inputs, list(output), drafts)


def test_a_text_and_its_recording_are_read_as_ids():
    """Three of them are enough where nothing but the recording is asked."""
    greedy = Autoregressive(TARGET, Greedy())
    text, settings = (
        text_of([3, 5, -1]),
        (plan(greedy, verifier=GreedyMatch()), {"Autoregressive": greedy}),
    )
    row = replays._Replaying(*settings, True, 8, {}).row(text, tossing())
    stop, token, other = replays.STOPS, replays.TOKEN, replays.OTHER
    assert (row.inputs, row.tokens.tolist()) == ((), [token, token, stop])
    assert row.recordings["draft"]["tokens"].tolist() == [token, other, other]
    row = replays._Replaying(*settings, False, 8, {}).row(text, tossing())
    assert (row.inputs, row.tokens.tolist()) == ([2, 3, 4, 1], [3, 4, 1])
    said = row.recordings["draft"]["tokens"].tolist()
    assert said[:2] == [3, 5] and said[2] not in (1, -1), "where it says nothing it is refused"


def test_a_replay_of_more_texts_than_fill_a_batch():
    """The model begins, and where the input has the end of the output it is copied from there."""
    both = Hybrid(PromptLookup(), Autoregressive(TARGET, Greedy()))
    name = "second Autoregressive"
    texts = [text_of([3, -1, 1], name=name, index=i) for i in range(replays.ROWS[False])]
    texts.append(text_of([3, 4, 1], name=name, index=99))
    found = replay(plan(both, verifier=GreedyMatch()), texts, vocab_size=8)
    assert found.calls.tolist() == [2] * 32 + [1] and found.tokens.tolist() == [3] * 33
    assert found.accepted[0, :2].tolist() == [1, 1] and found.accepted[32, :2].tolist() == [2, 0]
    assert found.source.shape == (33, 6) and found.source[:, :2].tolist() == [[1, 0]] * 32 + [
        [1, 0]
    ]


def test_coins_are_tossed_anew_for_each_sample_and_seed():
    output, given = [3] * 6, {"ratio": [0.5] * 6}
    texts = [Accepted(0, 6, {}, [2], output, {"Autoregressive": given})] * 8
    one, seeds = plan(), {}
    for seed in (0, 1):
        calls = replay(one, texts, vocab_size=8, samples=3, seed=seed).calls.reshape(3, 8)
        assert len({tuple(row) for row in calls.tolist()}) == 3
        seeds[seed] = calls.tolist()
    assert seeds[0] != seeds[1]
    assert replay(one, texts, vocab_size=8, samples=1).calls.tolist() == seeds[0][0]


def test_a_stopping_rule_sees_the_draft_from_each_start():
    """Where a token is refused, the rule sees how sure the drafter was of the refused one."""
    one = plan(schedule=Confidence(0.5, buckets=(2,)))
    recording = {"confidence": [0.9, 0.4, 0.8], "entropy": [0.0] * 3, "top": [[0.0] * 10] * 3}
    kept, drafts = np.ones([3, 2], bool), replays._Recording(one, MODEL, recording, 3)
    assert drafts.lengths((), kept).tolist() == [2, 1, 2]
    recording["refused"] = [0.9, 0.9, 0.1]
    assert drafts.lengths((), kept).tolist() == [2, 1, 2]
    refused = np.array([[True, False], [False, True], [False, True]])
    assert drafts.lengths((), refused).tolist() == [2, 2, 1]
    assert drafts._replace(plan=plan()).lengths((), kept).tolist() == [2, 2, 2]


@pytest.mark.parametrize("stop_ids", [(1,), (7,), (6, 7), (0, 6)])
def test_another_token_is_neither_the_texts_nor_a_stop_id(stop_ids):
    text = np.arange(8)
    other = replays._another(text, stop_ids, 8)
    assert not (other == text).any() and not np.isin(other, stop_ids).any()
    assert ((other >= 0) & (other < 8)).all()


def test_a_batch_takes_the_calls_of_its_slowest_row():
    """Two samples of seven texts make three batches of two each; the last text fills none."""
    calls = np.array([1, 4, 2, 3, 9, 5, 99, 1, 1, 6, 9, 2, 7, 99])
    drafted = np.stack([calls, 10 - calls], axis=1)
    found = grouped(Replayed(calls, calls, drafted, drafted, None), texts=7, rows=2)
    assert found.calls.tolist() == [4, 3, 9, 1, 9, 7]
    assert found.drafted.tolist() == [[4, 9], [3, 8], [9, 5], [1, 9], [9, 4], [7, 8]]
    assert found.source is None


def test_a_recording_is_repeated_along_a_text_and_its_last_token_beyond():
    model, params = Recorded(8), {"tokens": jnp.array([[3, 4, 5], [6, 7, 2]])}
    cache = model.prefill(params, None, 9)
    for width, expected in ((2, [[3, 4], [6, 7]]), (3, [[5, 5, 5], [2, 2, 2]])):
        output, cache = model.decode(params, jnp.zeros([2, width], jnp.int32), cache)
        np.testing.assert_array_equal(output.logits, np.eye(8)[np.array(expected)])
    assert cache.length.tolist() == [5, 5]


@pytest.mark.parametrize("length, drafted, count", [(1, [3, 4], 2), (2, [5, 6], 1), (4, [5, 6], 1)])
def test_a_block_is_that_of_the_token_it_starts_with(length, drafted, count):
    """Of a text that is complete, that of its last token."""
    tokens, lengths = jnp.array([[[3, 4], [5, 6]]]), jnp.array([[2, 1]])
    params = Params(**{"draft": {"tokens": tokens, "length": lengths}})
    request = Request(context_of([[0, 3, 5, 1]], [length]), jnp.zeros([1, 2]), jnp.array([2]))
    draft, _ = ByStart(Recorded(8), Greedy()).propose(params, request, ())
    assert (draft.tokens.tolist(), draft.length.tolist()) == ([drafted], [count])


def test_behind_its_text_a_recording_has_no_stop_id():
    """Drafting would end there, and would have cost less."""
    greedy = Autoregressive(TARGET, Greedy())
    one = plan(greedy, Fixed(5, stop_at_end=True), GreedyMatch())
    found = replay(one, [text_of([3, 4, 5])], vocab_size=8)
    assert (found.drafted[0, 0], found.accepted[0, 0], found.calls[0]) == (5, 2, 1)


def test_a_call_is_as_deep_as_the_deepest_token_that_it_looks_at():
    """Its draft and the token behind it, kept or not; calls that were not made look at nothing."""
    texts = [Accepted(0, 5, {}, depths=(1, 2, 1, 3, 1))]
    drafted, accepted = np.array([[1, 1, 1, 0, 0, 0]]), np.array([[1, 0, 1, 0, 0, 0]])
    found = Replayed(np.array([5]), np.array([3]), drafted, accepted, None)
    assert replays._depths(plan(), texts, found)[0, :3].tolist() == [2, 3, 3]
    twice = Replayed(*(np.repeat(x, 2, axis=0) for x in found[:4]), None)
    assert replays._depths(plan(), texts, twice)[:, :3].tolist() == [[2, 3, 3]] * 2


def test_a_draft_is_as_long_as_an_output_or_a_block_allows():
    assert longest(plan()) == 5 and bound(plan()) == "outputs hold 6"
    assert longest(plan(MASKS)) == 2 and bound(plan(MASKS)) == "Masked drafts 2 at most"
    check(dataclasses.replace(plan(schedule=Fixed(9)), max_length=4), [])  # it is cut there anyway


class Leaves(TableTarget):
    """A target whose tokens may leave behind the first layer."""

    depths = (1, 2)


def test_layers_are_of_each_token_of_a_text():
    one = Plan(Leaves(8), PromptLookup(), SpeculativeSampling(), Fixed(2), Sampling(), 6)
    check(one, [Accepted(3, 2, {}, output=[2, 1], depths=[1, 2])])
    for depths in ([], [1], [1, 2, 1]):
        with pytest.raises(ValueError, match="text 3 does not record its tokens' layers"):
            check(one, [Accepted(3, 2, {}, output=[2, 1], depths=depths)])


def test_a_recording_is_of_each_token_of_its_text():
    def text(proposed: int):
        drafts = {"Autoregressive": {"proposed": [2] * proposed}}
        return Accepted(3, 2, {}, output=[2, 1], drafts=drafts)

    greedy = plan(Autoregressive(TARGET, Greedy()), verifier=GreedyMatch())
    check(greedy, [text(2)])
    for count in (1, 3):
        with pytest.raises(ValueError, match="text 3 has no recording 'proposed' of Autoreg"):
            check(greedy, [text(count)])
    check(plan(PromptLookup()), [text(0)])
