"""T5's tasks, on TFDS data sets made here and on TFDS's mock: pytest tests/tasks"""

import pytest
from support import make, translations

from specdec import tasks
from specdec.tasks.metrics import references

LENGTHS = {"inputs": 60, "targets": 12}
PAIRS = [(f"Sentence {i}.", f"Satz {i}.") for i in range(7)]

# What a task reads, as TFDS has it: its folder, the split that is made here, one of its examples;
# and what T5 makes of that.
SETS = {
    "wmt_t2t_ende_v003": (
        "wmt_t2t_translate/de-en/1.0.0",
        "test",
        {"de": "Zwei Häuser.", "en": "Two houses."},
        ("translate English to German: Two houses.", "Zwei Häuser."),
    ),
    "wmt14_ende_v003": (
        "wmt14_translate/de-en/1.0.0",
        "test",
        {"de": "Zwei Häuser.", "en": "Two houses."},
        ("translate English to German: Two houses.", "Zwei Häuser."),
    ),
    "cnn_dailymail_v002": (
        "cnn_dailymail/3.4.0",
        "test",
        {"article": "A  story.", "highlights": "It\nends.", "id": "1", "publisher": "p"},
        ("summarize: A  story.", "It\nends."),
    ),
    "xsum_v110": (
        "xsum/1.1.0",
        "test",
        {"document": "A story.", "summary": "It ends."},
        ("summarize: A story.", "It ends."),
    ),
    "squad_v010_allanswers": (
        "squad/v1.1/3.0.0",
        "validation",
        {
            "id": "1",
            "title": "t",
            "context": "It costs $5.00\t(five);  no more.",
            "question": "What's the cost?",
            "answers": {"text": ["$5.00", "five"], "answer_start": [9, 16]},
        },
        (
            "question: What ' s the cost ? context: It costs $ 5 . 00 ( five ) ; no more . ",
            " $ 5 . 00",
        ),
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with all the data sets; WMT's has two files."""
    folder = tmp_path_factory.mktemp("tfds")
    for task, (name, split, example, _) in SETS.items():
        if task == "wmt_t2t_ende_v003":
            make(folder, name, split, translations(PAIRS[:3]), translations(PAIRS[3:]))
        else:
            make(folder, name, split, [example])
    return folder


@pytest.fixture
def there(data):
    tasks.use_tfds_data_dir(str(data))


@pytest.mark.parametrize("name", SETS)
def test_texts_are_t5s(there, name):
    _, split, _, expected = SETS[name]
    task = tasks.t5_task(name, tasks.Bytes())
    if name == "wmt_t2t_ende_v003":
        expected = ("translate English to German: Sentence 0.", "Satz 0.")
    batch = next(tasks.batches(task, split, {"inputs": 200, "targets": 50}, batch_size=1))
    assert (batch.input_texts[0], batch.target_texts[0]) == expected
    ids = tasks.Bytes().load().encode(expected[0])
    assert batch.inputs[0, : len(ids) + 1].tolist() == [*ids, 1]
    # Cut so that EOS fits.
    batch = next(tasks.batches(task, split, {"inputs": 10, "targets": 10}, batch_size=1))
    assert batch.inputs[0].tolist() == [*ids[:9], 1]


def test_the_metric_of_answers_takes_them_all(there):
    task = tasks.t5_task("squad_v010_allanswers", tasks.Bytes())
    ((target, prepare),) = references(task, "validation", LENGTHS)
    assert target == [" $ 5 . 00", "five"]
    (metric,) = task.metric_fns
    assert metric([target], [prepare("Five")]) == {"em": 100.0, "f1": 100.0}


def test_metrics_are_t5s():
    metrics = {name: tasks.t5_task(name, tasks.Bytes()).metric_fns for name in SETS}
    assert metrics["wmt_t2t_ende_v003"] == metrics["wmt14_ende_v003"] == [tasks.Bleu("intl")]
    assert metrics["cnn_dailymail_v002"] == metrics["xsum_v110"] == [tasks.rouge]


def test_two_files_are_read_in_order_and_counted(there):
    task = tasks.t5_task("wmt_t2t_ende_v003", tasks.Bytes())
    (batch,) = tasks.batches(task, "test", LENGTHS, batch_size=7)
    assert batch.target_texts == [german for _, german in PAIRS]
    assert tasks.count(task, "test") == 7


def test_a_missing_data_set_is_named_at_the_call(tmp_path):
    tasks.use_tfds_data_dir(str(tmp_path))
    for call in (
        lambda task: tasks.batches(task, "test", LENGTHS, batch_size=1),
        lambda task: tasks.count(task, "test"),
    ):
        with pytest.raises(tasks.TaskError) as error:
            call(tasks.t5_task("xsum_v110", tasks.Bytes()))
        assert str(error.value) == (
            "task 'xsum_v110' reads the TFDS data set xsum:1.1.0, which is not in "
            f"{tmp_path}; say where it is with --tfds_data_dir=DIR, or make it: tfds build "
            "xsum:1.1.0 --data_dir=DIR"
        )
    assert not list(tmp_path.iterdir())


def test_a_missing_data_set_of_a_mixture_and_of_somebodys_task(tmp_path):
    import seqio

    tasks.use_tfds_data_dir(str(tmp_path))
    parts = [tasks.t5_task(name, tasks.Bytes()) for name in ("xsum_v110", "cnn_dailymail_v002")]
    with pytest.raises(tasks.TaskError, match="'(xsum|cnn_dailymail)_v.* which is not in"):
        tasks.count(tasks.mixture("summaries", parts, [1, 1]), "test")
    seqio.TaskRegistry.add(
        "theirs",
        source=seqio.TfdsDataSource("no_such_data_set:1.0.0"),
        preprocessors=[],
        output_features={"targets": seqio.Feature(tasks.Bytes().load())},
    )
    with pytest.raises(tasks.TaskError, match=r"data set no_such_data_set:1\.0\.0"):
        tasks.batches("theirs", "test", LENGTHS, batch_size=1)


def test_a_split_that_is_not_there(there):
    with pytest.raises(tasks.TaskError, match="no split 'test'; it has validation"):
        tasks.count(tasks.t5_task("squad_v010_allanswers", tasks.Bytes()), "test")


def test_a_task_of_the_same_name_is_taken_if_its_vocabulary_is_the_same():
    import seqio

    from specdec.tasks import t5

    name = "xsum_v110"
    theirs = seqio.TaskRegistry.get(name) if name in seqio.TaskRegistry.names() else None
    if theirs is None:
        theirs = tasks.t5_task(name, tasks.Bytes()).of
    t5._register.cache_clear()  # as if it were another's
    assert tasks.t5_task(name, tasks.Bytes()) == tasks.get_task(theirs)
    with pytest.raises(tasks.TaskError, match=r"registered with another vocabulary than Bytes\(ex"):
        tasks.t5_task(name, tasks.Bytes(extra_ids=9))
    with pytest.raises(tasks.TaskError, match="no task of T5 is named 'wmt'; there are wmt_t2t"):
        tasks.t5_task("wmt", tasks.Bytes())


def test_a_vocabulary_that_is_far_away(monkeypatch):
    import threading

    import seqio
    import tensorflow as tf

    far = tasks.SentencePiece("gs://specdec-no-such-bucket/vocabulary.model")
    released = threading.Event()
    monkeypatch.setattr(tasks.loading, "PATIENCE", 0.1)
    monkeypatch.setattr(tf.io.gfile, "GFile", lambda *_: released.wait())
    with pytest.raises(
        tasks.TaskError, match=r"^vocabulary gs://\S+ cannot be read \(no answer in"
    ):
        far.load()
    released.set()

    def refused(*_):
        raise OSError("no route\nto the host")

    monkeypatch.setattr(tf.io.gfile, "GFile", refused)
    monkeypatch.setattr(tasks.loading, "PATIENCE", 20)
    with pytest.raises(tasks.TaskError, match=r"\(no route\); name a copy"):
        far.load()

    # A task that is registered already may have such a one.
    feature = seqio.Feature(seqio.SentencePieceVocabulary("gs://specdec-other-bucket/v.model"))
    theirs = seqio.Task("x", source=None, output_features={"targets": feature}, preprocessors=[])
    monkeypatch.setattr(seqio.TaskRegistry, "names", lambda: {"xsum_v110"})
    monkeypatch.setattr(seqio.TaskRegistry, "get", lambda name: theirs)
    with pytest.raises(tasks.TaskError, match="gs://specdec-other-bucket"):
        tasks.t5_task("xsum_v110", tasks.Bytes(7))
