"""Local tasks, vocabularies and batches: pytest tests/tasks/test_tasks.py"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from specdec import tasks
from specdec.common import demo
from specdec.tasks.seqio_tasks import SeqioTask
from specdec.tasks.task import Task

LENGTHS = {"inputs": 12, "targets": 12}
LINES = ["one\teins", "two words\tzwei Wörter", "three\tdrei", "a\tein", "five\tfünf"]


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "test.tsv"
    file.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return file


def byte_task(name, file, **options):
    return tasks.local_task(name, {"test": str(file)}, tasks.Bytes(), **options)


def rows(batches):
    """index -> ids without padding."""
    return {
        int(index): row[row > 0].tolist()
        for batch in batches
        for index, row in zip(batch.index, batch.inputs, strict=True)
        if index >= 0
    }


def test_features_are_prefixed_trimmed_and_end_in_eos(tsv):
    task = byte_task("features", tsv, prefix="de: ")
    (first, second, *_) = task.examples("test", LENGTHS)
    assert first.inputs.tolist() == [*task.vocabulary.encode("de: one"), 1]
    assert first.targets.tolist() == [*task.vocabulary.encode("eins"), 1]
    # 13 bytes do not fit: the text is cut so that EOS does.
    assert second.inputs.tolist() == [*task.vocabulary.encode("de: two wor"), 1]
    (third, *_) = task.examples("test", LENGTHS, start=2)
    assert third.input_text == "de: three"


def test_batches_keep_order_and_pad_the_last_one(tsv):
    batches = list(tasks.batches(byte_task("order", tsv), "test", LENGTHS, batch_size=2))
    assert [batch.index.tolist() for batch in batches] == [[0, 1], [2, 3], [4, -1]]
    assert {batch.inputs.shape for batch in batches} == {(2, 12)}
    assert {batch.inputs.dtype for batch in batches} == {np.dtype(np.int32)}
    assert not batches[-1].inputs[1].any()
    assert batches[-1].input_texts == ["five"]
    assert batches[-1].target_texts == ["fünf"]
    assert [text for batch in batches for text in batch.input_texts] == [
        line.split("\t")[0] for line in LINES
    ]


def test_a_row_does_not_depend_on_the_batch_size(tsv):
    task = byte_task("sizes", tsv)
    assert rows(tasks.batches(task, "test", LENGTHS, batch_size=1)) == rows(
        tasks.batches(task, "test", LENGTHS, batch_size=3)
    )


def test_limit_and_count(tsv):
    task = byte_task("limit", tsv)
    assert tasks.count(task, "test") == 5
    limited = list(tasks.batches(task, "test", LENGTHS, batch_size=2, limit=3))
    assert [batch.index.tolist() for batch in limited] == [[0, 1], [2, -1]]


def test_a_batch_takes_the_smallest_bucket_that_fits(tsv):
    task = byte_task("buckets", tsv)
    batches = tasks.batches(task, "test", LENGTHS, batch_size=1, buckets=(4, 6))
    # Lengths with EOS: 4, 10, 6, 2, 5.
    assert [batch.inputs.shape[1] for batch in batches] == [4, 12, 6, 4, 6]


def test_hosts_get_equally_many_batches_of_equal_shapes(tsv):
    task = byte_task("hosts", tsv)
    options = {"batch_size": 1, "buckets": (4, 6)}
    # Lengths with EOS: 4, 10 | 6, 2 | 5. Two hosts need the width of the longer one.
    first, second = (
        list(tasks.batches(task, "test", LENGTHS, **options, shard=(host, 2))) for host in (0, 1)
    )
    assert [batch.index.tolist() for batch in first] == [[0], [2], [4]]
    assert [batch.index.tolist() for batch in second] == [[1], [3], [-1]]
    for batches in (first, second):
        assert [batch.inputs.shape for batch in batches] == [(1, 12), (1, 6), (1, 6)]
        assert [batch.targets.shape for batch in batches] == [(1, 12)] * 3
    assert second[2].input_texts == second[2].target_texts == []
    whole = rows(tasks.batches(task, "test", LENGTHS, batch_size=2))
    assert rows(first) | rows(second) == whole and len(whole) == 5


def test_plain_text_has_no_targets(tmp_path):
    file = tmp_path / "plain.txt"
    file.write_text("a\tb\n\nc\n")
    task = byte_task("plain", file, columns=("inputs",))
    (batch,) = tasks.batches(task, "test", LENGTHS, batch_size=3)
    assert batch.input_texts == ["a\tb", "", "c"]
    assert batch.target_texts is batch.targets is None
    assert batch.inputs[1].tolist() == [1] + [0] * 11


def test_line_ends_of_other_systems(tmp_path):
    file = tmp_path / "dos.tsv"
    file.write_bytes(b"\xef\xbb\xbfone\teins\r\ntwo\rtoo\tzwei\r\n")
    (batch,) = tasks.batches(byte_task("dos", file), "test", LENGTHS, batch_size=2)
    assert batch.input_texts == ["one", "two too"]
    assert batch.target_texts == ["eins", "zwei"]


def test_the_same_task_is_registered_once(tsv):
    task = byte_task("twice", tsv)
    assert byte_task("twice", tsv) is task
    assert tasks.get_task("twice") is task
    with pytest.raises(tasks.TaskError, match="'twice' exists with another definition"):
        byte_task("twice", tsv, prefix="other: ")


def test_a_mixture_has_all_examples_in_one_order_that_is_drawn(tsv):
    parts = [byte_task("mixed_1", tsv), byte_task("mixed_2", tsv, prefix="de: ")]
    mixture = tasks.mixture("mixed", parts, [1, 3])
    assert tasks.mixture("mixed", ["mixed_1", "mixed_2"], [1, 3]) is mixture
    texts = [example.input_text for example in mixture.examples("test", LENGTHS)]
    assert len(texts) == tasks.count("mixed", "test") == 10
    for prefix in ("", "de: "):
        of_one = [text for text in texts if text.startswith("de: ") == bool(prefix)]
        assert of_one == [prefix + line.split("\t")[0] for line in LINES]
    assert texts != sorted(texts) and texts[-3:] == ["three", "a", "five"]
    with pytest.raises(tasks.TaskError, match="'mixed' exists with other rates"):
        tasks.mixture("mixed", parts, [1, 1])
    with pytest.raises(tasks.TaskError, match="mixture 'three' has 2 tasks but 1 rates"):
        tasks.mixture("three", parts, [1])
    others = tasks.local_task("mixed_3", {"test": str(tsv)}, tasks.Bytes(extra_ids=1))
    with pytest.raises(tasks.TaskError, match="of mixture 'odd' have different vocabularies"):
        tasks.mixture("odd", [parts[0], others], [1, 1])


def test_the_stream_of_a_mixture_can_begin_anywhere(tsv):
    parts = [byte_task("streamed_1", tsv), byte_task("streamed_2", tsv, prefix="de: ")]
    mixture = tasks.mixture("streamed", parts, [1, 3])

    def texts(seed, start, count):
        stream = itertools.islice(mixture.stream("test", LENGTHS, seed, start), count)
        return [example.input_text for example in stream]

    whole = texts(0, 0, 60)
    assert texts(0, 37, 23) == whole[37:] != texts(1, 37, 23)
    assert 35 < sum(text.startswith("de: ") for text in whole) < 55


def test_the_synthetic_tasks_of_the_demo():
    mixture = tasks.synthetic_mixture()
    assert [part.name for part in mixture.parts] == ["specdec_ende", "specdec_highlights"]
    assert tuple(mixture.rates) == (2, 1)
    for part in mixture.parts:
        sizes = {split: part.num_input_examples(split) for split in part.splits}
        assert sizes == {"train": 8000, "validation": 500, "test": 500}


def test_who_shuffles_a_stream_of_seqio(monkeypatch):
    own = SimpleNamespace(source=SimpleNamespace())
    asked = []
    monkeypatch.setattr(SeqioTask, "_read", lambda self, *_, **order: asked.append(order))
    monkeypatch.setattr(Task, "stream", lambda self, *given: asked.append(given[2:]))
    for of in (own, SimpleNamespace(tasks=[own])):
        for small in (True, False):
            monkeypatch.setattr(SeqioTask, "fits", lambda self, split, small=small: small)
            SeqioTask(of).stream("test", LENGTHS, 5, 7)
    ordered, shuffled = {"num_epochs": None, "shuffle": False}, {"shuffle": True, "seed": 5}
    assert asked == [(5, 7), ordered, {"num_epochs": None} | shuffled, ordered]
    SeqioTask(own).check_data()  # it reads no data set of TFDS
    own.source.tfds_dataset = SimpleNamespace(name=None)  # each split names its own
    SeqioTask(own).check_data()


def test_a_task_of_seqio_names_the_extra_that_it_needs(monkeypatch):
    tasks.loading.load_seqio.cache_clear()
    monkeypatch.setitem(sys.modules, "seqio", None)  # as if it were not installed
    needs = r"needs seqio; pip install seqio tensorflow-datasets$"
    calls = {
        "task 'xsum_v110' ": lambda: tasks.t5_task("xsum_v110", tasks.Bytes(50)),
        r"no task is named 'theirs' \(registered: .*\); one of seqio's ": (
            lambda: tasks.get_task("theirs")
        ),
        "--tfds_data_dir ": lambda: tasks.use_tfds_data_dir("/nowhere"),
        "vocabulary gs://b/v.model, which is on a network, ": (
            lambda: tasks.SentencePiece("gs://b/v.model").plain()
        ),
    }
    for message, call in calls.items():
        with pytest.raises(tasks.TaskError, match=f"^{message}{needs}"):
            call()
    tasks.loading.load_seqio.cache_clear()


def test_bytes_round_trip():
    vocabulary = tasks.Bytes(extra_ids=2).plain()
    assert vocabulary.vocab_size == 261
    ids = vocabulary.encode("größer")
    assert tasks.detokenize(vocabulary, [*ids, 260, 300, 1, 70]) == "größer"


def test_copies_of_a_vocabulary_are_the_same(tmp_path):
    copy = shutil.copy(demo.path("vocabulary.model"), tmp_path / "copy.model")
    ours, theirs = (
        tasks.SentencePiece(str(p)).load() for p in (demo.path("vocabulary.model"), copy)
    )
    assert tasks.same_vocabulary(ours, theirs)
    sentinels = tasks.SentencePiece(str(copy), extra_ids=3).load()
    assert not tasks.same_vocabulary(ours, sentinels)
    assert not tasks.same_vocabulary(ours, tasks.Bytes().load())
    assert tasks.same_vocabulary(tasks.Bytes().load(), tasks.Bytes().load())
    assert not tasks.same_vocabulary(tasks.Bytes(1).load(), tasks.Bytes().load())


@pytest.mark.parametrize(
    "content, message",
    [
        (None, r"bad\.tsv does not exist"),
        (b"", r"bad\.tsv is empty"),
        (b"a\tb\nno tab\nc\td\n", r"bad\.tsv, line 2: 1 TAB-separated columns, not 2.*TASK_COLUMN"),
        (b"a\tb\nc\td\te\n", r"bad\.tsv, line 2: 3 TAB-separated columns, not 2"),
        (b"a\tb\n\n", r"bad\.tsv, line 2: 1 TAB"),
        (b"a\t\xff\n", r"bad\.tsv, line 1: not UTF-8"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, message):
    file = tmp_path / "bad.tsv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(tasks.TaskError, match=message) as error:
        byte_task("bad", file)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content, message", [(None, "is not a file"), (b"junk", "is not a SentencePiece model")]
)
def test_a_bad_vocabulary_is_named(tmp_path, tsv, content, message):
    path = tmp_path / "bad.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(tasks.TaskError, match=re.escape(str(path)) + ".* " + message):
        tasks.local_task("v", {"test": str(tsv)}, tasks.SentencePiece(str(path)))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"split": "tset"}, "'errors' has no split 'tset'; it has test"),
        ({"lengths": {"inputs": 8}}, "no sequence length for 'targets' in {'inputs': 8}"),
        ({"lengths": {"inputs": 8, "targets": None}}, "no sequence length for 'targets'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"limit": 0}, "limit is 0"),
        ({"buckets": (6, 4)}, r"buckets is \(6, 4\); give ascending lengths below 12"),
        ({"buckets": (12,)}, "buckets is"),
        ({"shard": (2, 2)}, r"shard is \(2, 2\); give \(k, n\) for the k-th of n hosts"),
        ({"task": "nonesuch"}, "no task is named 'nonesuch'; registered: .*errors"),
    ],
)
def test_a_wrong_argument_is_named_at_the_call(tsv, change, message):
    right = {"task": byte_task("errors", tsv), "split": "test", "lengths": LENGTHS, "batch_size": 1}
    with pytest.raises(tasks.TaskError, match=message):
        tasks.batches(**(right | change))


def test_columns_are_checked(tsv):
    with pytest.raises(tasks.TaskError, match=r"columns is \('source',\)"):
        byte_task("columns", tsv, columns=("source",))


# Tasks over what a model wrote.

VOCABULARY = tasks.Bytes(0)
WRITTEN = [
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
    path = folder(tmp_path / "one", WRITTEN[::2], "predictions-00000-of-00002.jsonl")
    folder(tmp_path / "one", WRITTEN[1::2], "predictions-00001-of-00002.jsonl")
    task = tasks.predictions_task("written_1", {"train": path}, VOCABULARY)
    found = examples(task, "train", {"inputs": 12, "targets": 8})
    ids = [[*(byte + 3 for byte in line["input"].encode()), 1] for line in WRITTEN]
    assert found == [(ids[0], [5, 6, 1]), (ids[1], []), (ids[2], [9] * 8)]
    assert task.num_input_examples("train") == 3
    again = tasks.predictions_task("written_1", {"train": path}, VOCABULARY)
    assert again is task


def test_a_line_that_is_still_being_written_is_not_there_yet(tmp_path):
    path = folder(tmp_path / "two", [WRITTEN[0], '{"index": 1, "inp'])
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
        ([WRITTEN[0], {"index": 1, "input": "x"}], "line 2: not a prediction"),
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
    path = folder(tmp_path / "one", WRITTEN)
    assert tasks.token_counts(path) == {5: 1, 6: 1, 1: 1, 9: 30}
    assert tasks.longest_output(path) == 30
    path = folder(tmp_path / "two", ['{"index": 1, "inp'])
    with pytest.raises(
        tasks.TaskError, match="two has no whole prediction; let specdec eval go on"
    ):
        tasks.longest_output(path)
