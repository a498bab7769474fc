"""OPT, in all of its sizes."""

from specdec.models.opt.opt_model import Opt, OptConfig

__all__ = ["Opt", "OptConfig"]
