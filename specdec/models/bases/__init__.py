"""Common parts of families: of Linen models, of decoders, and of decoders' checkpoints."""
