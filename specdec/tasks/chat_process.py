"""The process that renders chat templates, which come with checkpoints; see `chat`.

A short template can take hours or gigabytes: by a product, a power, a width of formatted text, a
filter, a loop. The sandbox of jinja2 stops few of these, and constant expressions are computed even
when a template is parsed. Therefore the whole process has limits.

This file is run by its path, so it imports nothing of specdec. Requests and answers are lines of
JSON. A process that reaches a limit ends without an answer.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import functools
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2
    from jinja2.nodes import Node
    from jinja2.parser import Parser

SECONDS = 10  # for one message
GIBIBYTES = 1  # of the address space, where the system can limit it
CHARACTERS = 1_000_000  # that a template may add to a message
SAID = 300  # characters of an error that are shown
LIMITS = (
    f"it takes more than {SECONDS} seconds or {GIBIBYTES} GiB, or adds more than {CHARACTERS:,} "
    "characters"
)


def main() -> None:
    """Answers requests on stdin: a template, its special tokens, a message (null: only parse)."""
    with contextlib.suppress(ImportError, ValueError):  # Windows; a limit that is lower already
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (GIBIBYTES * 2**30, most))
    for line in sys.stdin:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            answer = {"prompt": rendered(*json.loads(line))}
        except MemoryError:
            return
        except Exception as error:  # of jinja2, or of the template's own code
            answer = {"error": str(error).partition("\n")[0][:SAID]}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), flush=True)


def rendered(source: str, names: Mapping[str, str], message: str | None) -> str:
    """Returns the prompt that the template `source` makes of a user's message; '' without one,
    which only parses the template."""
    template = _template(source)
    if message is None:
        return ""
    variables = {
        "messages": [{"role": "user", "content": message}],
        "tools": None,
        "documents": None,
    }
    parts, length = [], 0
    for part in template.generate(**variables, add_generation_prompt=True, **names):
        parts.append(part)
        length += len(part)
        if length > CHARACTERS + len(message):
            raise MemoryError
    return "".join(parts)


@functools.cache
def _template(source: str) -> jinja2.Template:
    """Returns a template of a sandbox with transformers' functions and filters."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    class Generation(jinja2.ext.Extension):
        """Accepts the tags around an assistant's text, which only training needs."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    return environment.from_string(source)


if __name__ == "__main__":
    main()
