"""The predicted speed of a run at every draft length, from texts that the target wrote once.

`replay` decodes them again with recordings (`recorded`) instead of models, which counts target
calls. `measured_costs` has the seconds of the parts. `forecast` makes figures from both.
"""
