"""Tasks: texts become batches of token ids, and ids become texts again.

Tasks read local files, the texts of the demo, series of numbers, and seqio's data sets. This is the
only package that imports seqio and TensorFlow, and only for a task of seqio.
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
from specdec.tasks.media import WithPictures, WithSound, features_of, fits_window
from specdec.tasks.metrics import Bleu, Rouge, Squad, WordErrors, bleu, rouge, squad, wer
from specdec.tasks.model_outputs import longest_output, predictions_task, token_counts
from specdec.tasks.pictures import PictureSettings
from specdec.tasks.registry import VOCABULARIES, get_task, mixture
from specdec.tasks.seqio_tasks import use_tfds_data_dir
from specdec.tasks.series import (
    SERIES_FILE,
    SERIES_KEY,
    Series,
    SeriesBins,
    check_series,
    is_series,
    series_record,
    values_of,
)
from specdec.tasks.series_tasks import Mase, WeightedQuantileLoss, mase, quantiles, series_task, wql
from specdec.tasks.sound import SoundWarning
from specdec.tasks.synthetic import demo_vocabulary, synthetic_mixture, synthetic_task
from specdec.tasks.t5 import t5_task
from specdec.tasks.task import FITS, Example, Task
from specdec.tasks.tokenizer_json import TokenizerJson
from specdec.tasks.vocabularies import (
    Bytes,
    LoadedVocabulary,
    SentencePiece,
    VocabularyDefinition,
    byte_ids,
    chatting,
    declares_begin,
    detokenize,
    digest,
    file_of,
    files_of,
    for_texts,
    has_prompts,
    input_ids,
    inputs_end,
    inputs_of,
    is_sound,
    output_ids,
    recorded_vocabulary,
    same_vocabulary,
    special_ids,
    tokenization_of,
    vocabulary_file,
)

__all__ = [
    "FITS",
    "SERIES_FILE",
    "SERIES_KEY",
    "VOCABULARIES",
    "Batch",
    "Bleu",
    "Bytes",
    "Example",
    "LoadedVocabulary",
    "Mase",
    "PictureSettings",
    "Rouge",
    "SentencePiece",
    "Series",
    "SeriesBins",
    "SoundWarning",
    "Squad",
    "Task",
    "TaskError",
    "TokenizerJson",
    "VocabularyDefinition",
    "WeightedQuantileLoss",
    "WithPictures",
    "WithSound",
    "WordErrors",
    "batches",
    "byte_ids",
    "special_ids",
    "check_lengths",
    "check_sizes",
    "bleu",
    "chatting",
    "check_series",
    "count",
    "declares_begin",
    "demo_vocabulary",
    "detokenize",
    "digest",
    "features_of",
    "file_of",
    "files_of",
    "fits_window",
    "for_texts",
    "get_task",
    "has_prompts",
    "input_ids",
    "inputs_of",
    "inputs_end",
    "is_series",
    "is_sound",
    "length_of",
    "local_task",
    "longest_output",
    "mase",
    "mixture",
    "output_ids",
    "predictions_task",
    "quantiles",
    "recorded_vocabulary",
    "rouge",
    "same_vocabulary",
    "series_record",
    "series_task",
    "squad",
    "synthetic_mixture",
    "synthetic_task",
    "t5_task",
    "text_batches",
    "token_counts",
    "tokenization_of",
    "use_tfds_data_dir",
    "values_of",
    "vocabulary_file",
    "wer",
    "wql",
]
