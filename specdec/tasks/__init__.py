"""Tasks: texts become batches of token ids, and ids become texts again.

Tasks read local files, generated corpora, and seqio's data sets. This is the only package that
imports seqio and TensorFlow, and only for a task of seqio.
"""

from specdec.tasks.batching import (
    Batch,
    batches,
    check_lengths,
    check_sizes,
    count,
    length_of,
    text_batches,
)
from specdec.tasks.loading import TaskError
from specdec.tasks.local import local_task
from specdec.tasks.metrics import Bleu, Rouge, Squad, bleu, rouge, squad
from specdec.tasks.model_outputs import longest_output, predictions_task, token_counts
from specdec.tasks.registry import VOCABULARIES, get_task, mixture
from specdec.tasks.seqio_tasks import use_tfds_data_dir
from specdec.tasks.synthetic import demo_vocabulary, synthetic_mixture, synthetic_task
from specdec.tasks.t5 import t5_task
from specdec.tasks.task import FITS, Example, Task
from specdec.tasks.tokenizer_json import TokenizerJson
from specdec.tasks.vocabularies import (
    Bytes,
    LoadedVocabulary,
    SentencePiece,
    VocabularyDefinition,
    chatting,
    declares_begin,
    detokenize,
    digest,
    file_of,
    for_texts,
    has_prompts,
    input_ids,
    inputs_end,
    recorded_vocabulary,
    same_vocabulary,
    special_ids,
    tokenization_of,
    vocabulary_file,
)

__all__ = [
    "FITS",
    "VOCABULARIES",
    "Batch",
    "Bleu",
    "Bytes",
    "Example",
    "LoadedVocabulary",
    "Rouge",
    "SentencePiece",
    "Squad",
    "Task",
    "TaskError",
    "TokenizerJson",
    "VocabularyDefinition",
    "batches",
    "special_ids",
    "check_lengths",
    "check_sizes",
    "bleu",
    "chatting",
    "count",
    "declares_begin",
    "demo_vocabulary",
    "detokenize",
    "digest",
    "file_of",
    "for_texts",
    "get_task",
    "has_prompts",
    "input_ids",
    "inputs_end",
    "length_of",
    "local_task",
    "longest_output",
    "mixture",
    "predictions_task",
    "recorded_vocabulary",
    "rouge",
    "same_vocabulary",
    "squad",
    "synthetic_mixture",
    "synthetic_task",
    "t5_task",
    "text_batches",
    "token_counts",
    "tokenization_of",
    "use_tfds_data_dir",
    "vocabulary_file",
]
