"""The door to a bundle: a period's inputs as files.

Belongs here: the files of a bundle and what is wrong with them, and OpenMetrics dumps.
Does not: writing results (`commands.export`).
"""
