"""Tasks over what a model wrote: pytest tests/tasks/test_predictions.py"""

from __future__ import annotations

import json

import pytest

from specdec import tasks

VOCABULARY = tasks.Bytes(0)
LINES = [
    {"index": 0, "input": "turn: ab", "tokens": [5, 6, 1], "prediction": "not looked at"},
    {"index": 1, "input": "turn: c", "tokens": [], "prediction": ""},
    {"index": 2, "input": "turn: d", "tokens": [9] * 30, "prediction": "cut at the end"},
]


def folder(path, lines, name="predictions.jsonl"):
    path.mkdir(exist_ok=True)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (path / name).write_text(text)
    return str(path)


def examples(task, split, lengths):
    return [(x.inputs.tolist(), x.targets.tolist()) for x in task.examples(split, lengths)]


def test_targets_are_the_tokens_that_came_out(tmp_path):
    """Not the texts, nor an end where the output had none; of several hosts' files all, in the
    order of one host."""
    path = folder(tmp_path / "one", LINES[::2], "predictions-00000-of-00002.jsonl")
    folder(tmp_path / "one", LINES[1::2], "predictions-00001-of-00002.jsonl")
    task = tasks.predictions_task("written_1", {"train": path}, VOCABULARY)
    found = examples(task, "train", {"inputs": 12, "targets": 8})
    ids = [[*(byte + 3 for byte in line["input"].encode()), 1] for line in LINES]
    assert found == [(ids[0], [5, 6, 1]), (ids[1], []), (ids[2], [9] * 8)]
    assert task.num_input_examples("train") == 3
    again = tasks.predictions_task("written_1", {"train": path}, VOCABULARY)
    assert again is task


def test_a_line_that_is_still_being_written_is_not_there_yet(tmp_path):
    path = folder(tmp_path / "two", [LINES[0], '{"index": 1, "inp'])
    task = tasks.predictions_task("written_2", {"train": path}, VOCABULARY)
    assert len(examples(task, "train", {"inputs": 12, "targets": 8})) == 1


def test_ids_that_pad_the_output_layer_are_among_the_tokens(tmp_path):
    """A target draws them at a temperature; the byte vocabulary has 259 ids, a layer for it 384."""
    path = folder(tmp_path / "three", [{"input": "x", "tokens": [5, 383, 1]}])
    task = tasks.predictions_task("written_padded", {"train": path}, VOCABULARY)
    assert examples(task, "train", {"inputs": 12, "targets": 8})[0][1] == [5, 383, 1]


@pytest.mark.parametrize(
    "lines, message",
    [
        (None, "has no predictions; give the --output_dir of a run of specdec eval"),
        ([], "is empty; let specdec eval go on"),
        (["{]\n"], "predictions.jsonl, line 1: not a prediction"),
        ([LINES[0], {"index": 1, "input": "x"}], "line 2: not a prediction"),
        ([{"input": 3, "tokens": [1]}], "line 1: not a prediction"),
        ([{"input": "x", "tokens": [1.5]}], "line 1: not a prediction"),
        ([{"input": "x", "tokens": 5}], "line 1: not a prediction"),
        ([{"input": "x", "tokens": [384]}], "token 384, but the vocabulary has 259"),
    ],
)
def test_a_folder_without_predictions_is_refused(tmp_path, lines, message):
    path = str(tmp_path / "none") if lines is None else folder(tmp_path / "bad", lines)
    with pytest.raises(tasks.TaskError, match=message):
        tasks.predictions_task("written_bad", {"train": path}, VOCABULARY)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("", {"train": "x"}, VOCABULARY), "name is ''"),
        (("written_3", {}, VOCABULARY), "folders of task 'written_3' is {}"),
        (("written_3", {"train": 3}, VOCABULARY), "give split -> folder of specdec eval"),
        (("written_3", {"train": "x"}, "bytes"), "vocabulary of task 'written_3' is 'bytes'"),
    ],
)
def test_a_mistake_says_what_to_do(arguments, message):
    with pytest.raises(tasks.TaskError, match=message):
        tasks.predictions_task(*arguments)


def test_ids_and_lengths_of_all_outputs_are_counted(tmp_path):
    path = folder(tmp_path / "one", LINES)
    assert tasks.token_counts(path) == {5: 1, 6: 1, 1: 1, 9: 30}
    assert tasks.longest_output(path) == 30
    path = folder(tmp_path / "two", ['{"index": 1, "inp'])
    with pytest.raises(
        tasks.TaskError, match="two has no whole prediction; let specdec eval go on"
    ):
        tasks.longest_output(path)
