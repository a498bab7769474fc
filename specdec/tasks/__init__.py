"""Text in, batches of ids out, and back: seqio tasks over local files.

The only package that imports seqio and TensorFlow, and only when something is used.
"""

from specdec.tasks.batching import Batch, batches, count, get_task, text_batches
from specdec.tasks.errors import TaskError
from specdec.tasks.local import local_task
from specdec.tasks.metrics import bleu
from specdec.tasks.synthetic import demo_vocabulary, synthetic_mixture, synthetic_task
from specdec.tasks.vocabularies import (
    Bytes,
    SentencePiece,
    VocabularyDefinition,
    detokenize,
    same_vocabulary,
)

__all__ = [
    "Batch",
    "Bytes",
    "SentencePiece",
    "TaskError",
    "VocabularyDefinition",
    "batches",
    "bleu",
    "count",
    "demo_vocabulary",
    "detokenize",
    "get_task",
    "local_task",
    "same_vocabulary",
    "synthetic_mixture",
    "synthetic_task",
    "text_batches",
]
