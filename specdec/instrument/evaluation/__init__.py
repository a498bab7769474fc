"""The outputs of a run for a split of a task, their metrics, and the folder that keeps them."""
