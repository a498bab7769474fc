"""Replications of papers: compare the published figures of each row with predicted and measured.

`study` reads the rows of a paper, `steps` makes and runs the commands that measure a row, and
`results` reads the files that these wrote. `study_tables`, `figure` and `page` show the results.
`Replication` does all of this.
"""
