"""Drafters: the components that propose tokens. A new drafter is one file here, see `Drafter`."""

from specdec.drafters.autoregressive import Autoregressive
from specdec.drafters.blockwise import Blockwise
from specdec.drafters.committee import Committee
from specdec.drafters.draft_loop import Steps, draft_block, draft_loop
from specdec.drafters.drafter import Drafter, Drawing, TokenByToken
from specdec.drafters.early_exit import EarlyExit
from specdec.drafters.hybrid import Hybrid
from specdec.drafters.input_copy import InputCopy
from specdec.drafters.masked import Masked
from specdec.drafters.multi_path import MultiPath
from specdec.drafters.ngram import NGram
from specdec.drafters.previous_output import PreviousOutput
from specdec.drafters.prompt_lookup import PromptLookup
from specdec.drafters.retrieval import Retrieval
from specdec.drafters.suffix_decoding import SuffixDecoding
from specdec.drafters.uniform import Uniform
from specdec.models.contract.views import NoSource, WithoutPictures

__all__ = [
    "Autoregressive",
    "Blockwise",
    "Committee",
    "Drafter",
    "Drawing",
    "EarlyExit",
    "Hybrid",
    "InputCopy",
    "Masked",
    "MultiPath",
    "NGram",
    "NoSource",
    "PreviousOutput",
    "PromptLookup",
    "Retrieval",
    "Steps",
    "SuffixDecoding",
    "TokenByToken",
    "Uniform",
    "WithoutPictures",
    "draft_block",
    "draft_loop",
]
