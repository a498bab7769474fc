"""Replications of papers: rows with what each needs, and published, predicted, measured figures.

`study` reads the rows, `steps` makes the commands of each and runs them one by one,
`results` reads what they wrote, and `study_tables`, `figure` and `page` show it. `Replication` goes
all the way.
"""
