"""The layouts of parameters and the widths of calls that are fastest on the device at hand."""
