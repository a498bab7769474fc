"""A run that is measured: its plan, the sources of its texts, and the engine that decodes them."""
