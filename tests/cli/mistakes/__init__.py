"""The table of mistakes, by kind."""

from mistakes import files, flags, outputs, values
from mistakes.cases import Cases

KINDS: dict[str, Cases] = {
    "A drafter's settings": values.DRAFTS,
    "How tokens are drawn": values.SAMPLING,
    "Batches, seeds, limits": values.BATCHES,
    "Tasks and lengths": values.TEXTS,
    "Models and devices": values.MODELS,
    "What one command refuses": values.COMMANDS,
    "Training": values.TRAINING,
    "Gin files": files.GIN,
    "Data files": files.TSV,
    "Pairs to score": files.PAIRS,
    "Texts to decode": files.TEXTS,
    "Checkpoints": files.CHECKPOINTS,
    "What checkpoints ask for": files.ASKED,
    "Vocabularies": files.VOCABULARIES,
    "Flags": flags.WORDS,
    "Flags of one command": flags.COMMANDS,
    "Outputs over something": outputs.OVER,
    "Outputs to nowhere": outputs.NOWHERE,
    "Other folders": outputs.OTHERS,
}
