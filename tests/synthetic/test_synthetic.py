"""The generated corpora, their grammar and their tasks: pytest tests/synthetic/test_synthetic.py"""

import collections
import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from specdec import tasks
from specdec.tasks import corpora as synthetic
from specdec.tasks.corpora import articles, corrections, english, german, lexicon, translation
from specdec.tasks.corpora.dice import SPLITS, Dice, Weighted
from specdec.tasks.corpora.lexicon import Adjective, GermanNoun
from specdec.tasks.corpora.sentence_tree import Clause, NounPhrase, Pronoun, Words

pytestmark = pytest.mark.ci

NAMES = tuple(synthetic.PREFIXES)
LENGTHS = {"inputs": 160, "targets": 64}
CASES = ("nominative", "accusative", "dative")

# Of 200 examples of every split of a pair's tasks: its models were trained on this very corpus.
DIGESTS = [
    "7eebd77ca05bc99bb31db9fe44bd7dfeb49eab25e7447d4d0b7868fc6b79cb34",  # in demo/
    "963ab41ee886cd664d3d5d88830addb668eec1dbaa3548d4b2dfbb18521a2ce9",  # in demo_copying/
]

DIGEST_PROGRAM = """
import hashlib, itertools
from specdec.tasks import corpora as synthetic
for names in (("specdec_ende", "specdec_highlights"), ("specdec_gec", "specdec_qa")):
    digest = hashlib.sha256()
    for name in names:
        for split in synthetic.SIZES:
            for pair in itertools.islice(synthetic.examples(name, split), 200):
                digest.update(repr(pair).encode())
    print(digest.hexdigest())
"""


def first(name, split, number, **options):
    return list(itertools.islice(synthetic.examples(name, split, **options), number))


@pytest.fixture(scope="module")
def trees():
    return [translation.sample(Dice(translation.TASK, "train", i)) for i in range(3000)]


# A function of (task, split, seed, index)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_generates_the_same(hash_seed):
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", DIGEST_PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == DIGESTS, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_resuming_is_an_index(name):
    assert first(name, "train", 20)[7:] == first(name, "train", 13, start=7)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in (NAMES[0], "specdec_articles")))
        for name in NAMES
    ],
)
def test_splits_share_nothing(name):
    """Compares inputs, but whole articles where the input is a first sentence, as these are few."""
    whole = name == "specdec_articles"
    train, *held_out = (
        {source + target * whole for source, target in first(name, split, number)}
        for split, number in (("train", 10_000), ("validation", 500), ("test", 500))
    )
    assert all(len(split) == 500 for split in held_out)  # nor is anything in there twice
    assert not train & held_out[0] and not train & held_out[1] and not held_out[0] & held_out[1]


def test_no_two_examples_share_a_seed():
    corners = itertools.product(
        (1, 2, 3, 4), SPLITS, (0, 1, 2**32, 2**48 - 1), (0, 1, 2, 16, 48, 2**32 - 1)
    )
    draws = [Dice(*corner).pick(range(2**50)) for corner in corners]
    assert len(set(draws)) == len(draws)


def test_a_seed_is_another_corpus():
    assert not set(first(NAMES[0], "test", 50)) & set(first(NAMES[0], "test", 50, seed=1))


# German


@pytest.mark.parametrize(
    "lemma, table",
    [
        ("der", ["der die das die", "den die das die", "dem der dem den"]),
        ("dies", ["dieser diese dieses diese", "diesen diese dieses diese"]
         + ["diesem dieser diesem diesen"]),
        ("kein", ["kein keine kein keine", "keinen keine kein keine"]
         + ["keinem keiner keinem keinen"]),
        ("unser", ["unser unsere unser unsere", "unseren unsere unser unsere"]
         + ["unserem unserer unserem unseren"]),
    ],
)  # fmt: skip
def test_articles(lemma, table):
    for case, row in zip(CASES, table, strict=True):
        assert [german.article(lemma, case, column) for column in range(4)] == row.split()


@pytest.mark.parametrize(
    "kind, table",
    [
        ("weak", ["alte alte alte alten", "alten alte alte alten", "alten alten alten alten"]),
        ("mixed", ["alter alte altes alten", "alten alte altes alten", "alten alten alten alten"]),
        ("strong", ["alter alte altes alte", "alten alte altes alte", "altem alter altem alten"]),
    ],
)
def test_adjectives(kind, table):
    for case, row in zip(CASES, table, strict=True):
        forms = [german.adjective(Adjective("alt", "alt"), kind, case, i) for i in range(4)]
        assert forms == row.split()


@pytest.mark.parametrize(
    "word, singular, plural",
    [
        (GermanNoun("Hund", "m", "Hunde"), "Hund Hund Hund", "Hunde Hunde Hunden"),
        (GermanNoun("Student", "m", "Studenten", True), "Student Studenten Studenten",
         "Studenten Studenten Studenten"),
        (GermanNoun("Auto", "n", "Autos"), "Auto Auto Auto", "Autos Autos Autos"),
        (GermanNoun("Apfel", "m", "Äpfel"), "Apfel Apfel Apfel", "Äpfel Äpfel Äpfeln"),
    ],
)  # fmt: skip
def test_nouns(word, singular, plural):
    assert [german.noun(word, case, False) for case in CASES] == singular.split()
    assert [german.noun(word, case, True) for case in CASES] == plural.split()


@pytest.mark.parametrize(
    "infinitive, changed, forms",
    [
        ("kaufen", "", "kaufe kaufst kauft kauft kauft kaufen kaufen"),
        ("arbeiten", "", "arbeite arbeitest arbeitet arbeitet arbeitet arbeiten arbeiten"),
        ("öffnen", "", "öffne öffnest öffnet öffnet öffnet öffnen öffnen"),
        ("tanzen", "", "tanze tanzt tanzt tanzt tanzt tanzen tanzen"),
        ("bügeln", "", "bügle bügelst bügelt bügelt bügelt bügeln bügeln"),
        ("füttern", "", "füttere fütterst füttert füttert füttert füttern füttern"),
        ("laden", "läd", "lade lädst lädt lädt lädt laden laden"),
        ("lesen", "lies", "lese liest liest liest liest lesen lesen"),
        ("werden", "", "werde wirst wird wird wird werden werden"),
        ("müssen", "", "muss musst muss muss muss müssen müssen"),
        ("wissen", "", "weiß weißt weiß weiß weiß wissen wissen"),
    ],
)
def test_the_present(infinitive, changed, forms):
    assert [german.present(infinitive, changed, person) for person in range(7)] == forms.split()


def entry(entries, german_word):
    """(English, German) of the alternative that has the German word."""
    for each in entries:
        for item in each.german.items:
            if german_word in item:
                return each.english.items[0], item
    raise LookupError(german_word)


def call(**changes):
    """I call the old neighbor tomorrow, with something changed."""
    verb = Words(*entry(lexicon.VERBS["transitive"], "angerufen"))
    neighbor = NounPhrase(*entry(lexicon.NOUNS["person"], "Nachbar"), "the")
    time = Words("tomorrow", "morgen")
    clause = Clause(Pronoun(0), verb, "present", accusative=neighbor)
    return clause._replace(time=time, **changes)


@pytest.mark.parametrize(
    "changes, main, subordinate, source",
    [
        ({}, "ich rufe den Nachbarn morgen an", "dass ich den Nachbarn morgen anrufe",
         "I call the neighbor tomorrow"),
        ({"german_front": "time", "subject": Pronoun(2), "accusative": Pronoun(3)},
         "morgen ruft er sie an", "dass er sie morgen anruft", "he calls her tomorrow"),
        ({"tense": "past"}, "ich habe den Nachbarn morgen angerufen",
         "dass ich den Nachbarn morgen angerufen habe", "I called the neighbor tomorrow"),
        ({"tense": "future", "negated": True}, "ich werde den Nachbarn morgen nicht anrufen",
         "dass ich den Nachbarn morgen nicht anrufen werde",
         "I will not call the neighbor tomorrow"),
        ({"tense": "past modal", "modal": "wollen", "modal_word": "want to", "negated": True},
         "ich wollte den Nachbarn morgen nicht anrufen",
         "dass ich den Nachbarn morgen nicht anrufen wollte",
         "I did not want to call the neighbor tomorrow"),
    ],
)  # fmt: skip
def test_word_order(changes, main, subordinate, source):
    clause = call(**changes)
    assert " ".join(text for _, text in german.main_fields(clause)) == main
    assert german.subordinate(clause, "dass") == subordinate
    assert english.clause_text(clause) == source


def test_zu_stands_behind_a_prefix():
    text = german.subordinate(call(tense="infinitive"), "um")
    assert text == "um den Nachbarn morgen anzurufen"


def test_contractions_and_kein():
    _, place = entry(lexicon.PLACES["place"], lexicon.PLACES["place"][0].german.items[0].noun)
    park = NounPhrase(*[each.noun for each in entry(lexicon.PLACES["place"], place.noun)], "the")
    assert german.nominal(park, "dative", preposition="in") == "im Park"
    assert german.nominal(park, "dative", preposition="zu") == "zum Park"
    this = park._replace(determiner="this")
    assert german.nominal(this, "dative", preposition="in") == "in diesem Park"
    assert german.nominal(park._replace(determiner="a"), "accusative", True) == "keinen Park"


def test_the_verb_is_second_or_last(trees):
    """Position by position, and in the text itself."""
    kinds = collections.Counter()
    for tree in trees:
        clauses = german.clause_fields(tree)
        roles = [[role for role, _ in fields] for fields in clauses]
        for row in roles:
            assert row.count("finite") + row.count("infinitive") == 1
            if row[0] == "link" and not tree.german_link.main:
                assert row[-1] in ("finite", "infinitive"), row
                kinds["last"] += 1
            elif row[0] == "link":
                assert row[2] == "finite", row
                kinds["second behind denn, und, aber"] += 1
            elif tree.reversed:
                assert row[:2] == ["finite", "subject"]
                kinds["second behind a clause"] += 1
            else:
                assert row[1] == "finite" and row[0] in ("subject", "time", "place")
                kinds["second"] += 1
            bracket = [i for i, role in enumerate(row) if role == "right"]
            assert all(i >= len(row) - 2 for i in bracket)
        text = german.sentence_text(tree)
        words = [word for fields in clauses for _, part in fields for word in part.split()]
        plain = re.sub(r"[.,]", "", text).lower().split()
        assert plain == [word.strip(",").lower() for word in words]
    assert len(kinds) == 4 and min(kinds.values()) > 50, kinds


def test_every_sentence_is_well_formed(trees):
    for tree in trees:
        for text in (english.sentence_text(tree), german.sentence_text(tree)):
            assert 5 <= len(text.split()) <= 30
            assert re.fullmatch(r"[A-ZÄÖÜ][a-zA-ZäöüÄÖÜß',-]*( [a-zA-ZäöüÄÖÜß'-]+,?)*\.", text)


def test_lengths_spread(trees):
    lengths = [len(english.sentence_text(tree).split()) for tree in trees]
    assert 12 <= np.mean(lengths) <= 15
    assert np.quantile(lengths, 0.1) <= 8 and np.quantile(lengths, 0.9) >= 18


# Chance


def test_alternatives_come_with_their_weights():
    """Chi-square of 'because' and 'teacher' in German; false alarms: one in 10^6 corpora each."""
    seen = collections.defaultdict(collections.Counter)
    for index in range(20_000):
        tree = translation.sample(Dice(translation.TASK, "validation", index))
        if tree.english_link == "because" and not tree.reversed:
            seen["because"][tree.german_link] += 1
        noun = tree.first.subject
        if isinstance(noun, NounPhrase) and noun.english.singular == "teacher":
            seen["teacher"][noun.german] += 1
    teacher = lexicon.NOUNS["person"][0]
    laws = {"because": lexicon.LINKS["reason"].german, "teacher": teacher.german}
    for word, alternatives in laws.items():
        observed = [seen[word][item] for item in alternatives.items]
        expected = np.diff([0, *alternatives.bounds]) * sum(observed)
        assert min(expected) > 20
        assert stats.chisquare(observed, expected).pvalue > 1e-6, (word, observed, expected)


def test_weigh_follows_the_weights():
    """Chi-square of 20,000 draws; false alarms: one in 10^6 corpora."""
    weighted = Weighted.of("abc", [6, 1, 2])
    dice = Dice(3, "train", 0)
    drawn = collections.Counter(dice.weigh(weighted) for _ in range(20_000))
    expected = np.array([6, 1, 2]) / 9 * 20_000
    assert stats.chisquare([drawn[letter] for letter in "abc"], expected).pvalue > 1e-6


def test_every_word_of_the_lexicon_occurs():
    """Of the nouns and the verbs' participles, in 20,000 sentences."""
    text = " ".join(target for _, target in first("specdec_ende", "train", 20_000))
    seen = set(re.findall(r"\w+", text))
    nouns = {n.singular for e in itertools.chain(*lexicon.NOUNS.values()) for n in e.german.items}
    verbs = {v.participle for e in itertools.chain(*lexicon.VERBS.values()) for v in e.german.items}
    assert not nouns - seen and not verbs - seen


# Highlights


def test_highlights_say_what_the_article_says_twice():
    for article, summary in first("specdec_highlights", "train", 1000):
        sentences = re.findall(r"[^.]+\.", article)
        assert 3 <= len(sentences) <= 8 and len(article.split()) <= 120
        assert 1 <= len(re.findall(r"\.", summary)) <= 3
        assert "{" not in article + summary
        for number in re.findall(r"\d+", summary):
            assert len(re.findall(rf"\b{number}\b", article)) >= 2, (article, summary)
        for name in re.findall(r"(?<=[a-z] )[A-Z]\w+", summary):
            assert name in article


# Corrections


@pytest.fixture(scope="module")
def corrected():
    return [corrections.sample(Dice(corrections.TASK, "validation", i)) for i in range(2000)]


def test_errors_are_as_many_as_stated(corrected):
    """0 to 3, few of them given up because the text has no place for them."""
    share = collections.Counter(len(each.edits) for each in corrected)
    for number, stated in enumerate((0.25, 0.37, 0.23, 0.15)):
        assert abs(share[number] / len(corrected) - stated) < 0.04, share
    assert all((each.source == each.target) == (not each.edits) for each in corrected)


def test_the_target_is_what_the_grammar_says():
    for index in range(300):
        source, target = corrections.example("train", index)
        dice = Dice(corrections.TASK, "train", index)
        one, two = (english.sentence_text(translation.sample(dice)) for _ in range(2))
        assert target in (one, f"{one} {two}") and len(target.split()) <= 30
        assert abs(len(source.split()) - len(target.split())) <= 3


def test_every_kind_of_error_occurs(corrected):
    """And is what its name says, in a word that no other error is near."""
    spelled = {word.rstrip(".,") for each in corrected for word in each.words}
    seen = collections.Counter()
    for each in corrected:
        seen.update(edit.kind for edit in each.edits)
        for edit, after in itertools.pairwise(each.edits):
            assert after.at - edit.at > 2
        for edit in each.edits:
            word, wrong = each.words[edit.at], edit.text
            assert wrong != word
            match edit.kind:
                case "doubled":
                    assert wrong == f"{word} {word}"
                case "comma":
                    assert f"{wrong}," == word
                case "capital":
                    assert wrong == word.lower()
                case "article":
                    assert wrong in ("", "a", "an", f"the {word}")
                case "spelling":
                    assert set(wrong) == set(word) and abs(len(wrong) - len(word)) <= 1
                    assert wrong.rstrip(".,") not in spelled
                case _:
                    assert wrong[-1:] in (".", ",") or word[-1] not in ".,"
    assert set(seen) == set(corrections.KINDS) and min(seen.values()) >= 20, seen


def test_the_wrong_tense_has_its_time_beside_it(corrected):
    wrong = [each for each in corrected if any(edit.kind == "tense" for edit in each.edits)]
    assert all(re.search(r"[Yy]esterday|[Ll]ast|ago", each.target) for each in wrong)


# Questions


FACTS = list(itertools.chain(*articles.REPORTS))


def like(template, text):
    """Whether the text is the template with its gaps filled."""
    pattern = re.sub(r"\\\{\w+\\\}", r"[\\w ]+", re.escape(template))
    return re.fullmatch(pattern, text, re.IGNORECASE)


def test_an_answer_stands_in_its_article():
    """As the sentence that first states it; and the question names only what the article names."""
    asked = set()
    for source, answer in first("specdec_qa", "train", 1000):
        question, _, article = source.partition(" context: ")
        assert answer in re.findall(r"[A-Z0-9][^.]+\.", article) and article.count(answer) == 1
        assert question.endswith("?") and "{" not in source
        assert all(name in article for name in re.findall(r"(?<= )[A-Z]\w+", question))
        facts = [fact for fact in FACTS if any(like(each, question) for each in fact.question)]
        assert any(like(each, answer) for fact in facts for each in fact.long)
        asked.update(each for fact in facts for each in fact.question if like(each, question))
        assert 5 <= len(answer.split()) <= 20
    assert asked == {question for fact in FACTS for question in fact.question}


def test_a_question_has_one_answer():
    """No two facts of a kind of report share one."""
    for facts in articles.REPORTS:
        questions = [question for fact in facts for question in fact.question]
        assert len(set(questions)) == len(questions) == 2 * len(facts)


def test_an_article_goes_on_behind_its_first_sentence():
    for (first_one, rest), (article, _) in zip(
        first("specdec_articles", "test", 50), first("specdec_highlights", "test", 50), strict=True
    ):
        assert f"{first_one} {rest}" == article and first_one.count(".") == 1


# Tasks


@pytest.mark.parametrize(
    "name, inputs, targets",
    [("specdec_gec", 64, 64), ("specdec_qa", 176, 48), ("specdec_articles", 32, 144)],
)
def test_texts_fit(name, inputs, targets):
    vocabulary = tasks.demo_vocabulary().load()
    for split in ("validation", "test"):
        for source, target in first(name, split, 500):
            assert len(vocabulary.encode(synthetic.PREFIXES[name] + source)) < inputs
            assert len(vocabulary.encode(target)) < targets


@pytest.mark.parametrize("name", NAMES)
def test_the_vocabulary_covers_everything(name):
    """No unknown piece, no byte piece but the question mark, and the text comes back."""
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_file=tasks.demo_vocabulary().path)
    assert (pieces.pad_id(), pieces.eos_id(), pieces.unk_id(), pieces.bos_id()) == (0, 1, 2, -1)
    for source, target in first(name, "train", 2000) + first(name, "test", 500):
        for text in (synthetic.PREFIXES[name] + source, target):
            ids = pieces.encode(text)
            bytes_ = [pieces.id_to_piece(i) for i in ids if pieces.is_byte(i)]
            assert pieces.unk_id() not in ids and bytes_ == ["<0x3F>"] * text.count("?")
            assert pieces.decode(ids) == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_task_holds_the_examples(name, split):
    task = tasks.synthetic_task(name)
    assert tasks.synthetic_task(name) is task and tasks.get_task(name) is task
    assert tasks.count(task, split) == 500
    batches = list(tasks.batches(task, split, LENGTHS, batch_size=64))
    pairs = [
        pair
        for batch in batches
        for pair in zip(batch.input_texts, batch.target_texts, strict=True)
    ]
    prefix = synthetic.PREFIXES[name]
    assert pairs == [(prefix + source, target) for source, target in first(name, split, 500)]
    row = batches[0].inputs[0]
    assert row[row > 0].tolist() == [*task.vocabulary.encode(pairs[0][0]), 1]


@pytest.mark.parametrize("name", NAMES)
def test_train_goes_on(name):
    task = tasks.synthetic_task(name)
    rows = list(itertools.islice(task.stream("train", LENGTHS, seed=1, start=400), 200))
    assert [row.target_text for row in rows] == [t for _, t in first(name, "train", 600)[400:]]
    assert all(row.targets[-1] == 1 for row in rows)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: synthetic.examples("ende", "test"), ValueError, "no synthetic task is named"),
        (lambda: synthetic.examples(NAMES[0], "tset"), ValueError, "no split 'tset'; it has train"),
        (
            lambda: tasks.synthetic_task("ende"),
            tasks.TaskError,
            "no synthetic task is named 'ende'; there are specdec_ende, specdec_highlights",
        ),
        (
            lambda: [tasks.synthetic_task(NAMES[0], seed=seed) for seed in (0, 1)],
            tasks.TaskError,
            "exists with another vocabulary or seed",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_generating_needs_neither_seqio_nor_tensorflow():
    program = (
        "import sys; from specdec.tasks import corpora as synthetic;"
        "next(synthetic.examples('specdec_ende', 'train'));"
        "print({'seqio', 'tensorflow', 'sentencepiece'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
