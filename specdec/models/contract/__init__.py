"""The contract of a model: its methods, family, inputs and cache, and what each token sees."""
