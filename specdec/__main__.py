"""`python -m specdec` is the `specdec` command."""

import sys

from specdec.cli import main

sys.exit(main())
