"""The sizes of released models, which are scopes of gin files."""

from __future__ import annotations

import argparse
import contextlib
import re
from typing import cast

import gin
from specdec.cli import settings
from specdec.cli.gin_files import Own
from specdec.common.values import UsageError
from specdec.models import families
from specdec.models.contract.model import Model


def preset(flag: str, name: str, model: Model) -> Model:
    """Returns the model of size `name`, a scope in the gin file of the family of `model`."""
    family = families.family_of(model.config).presets
    presets = f"models/{family}.gin"
    flags = argparse.Namespace(gin_file=[Own(presets)], gin_bindings=[], tfds_data_dir=None)
    scope = name if name.isidentifier() else None  # gin refuses other names immediately
    with contextlib.suppress(UsageError), gin.config_scope(scope):
        return settings.build(cast(type[Model], families.named(family).model), flags, {})
    known = sorted(set(re.findall(rf"^(\w+)/{family}\.", gin.config_str(), re.MULTILINE)))
    raise UsageError(f"{flag} is {name!r}; give a scope of {presets}: {', '.join(known)}")
