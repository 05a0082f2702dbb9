"""What a person should look at in an hour.

Belongs here: one search for each kind of disagreement between lifecycle and telemetry, or of capacity that is paid for and
not used; the kinds and their texts.
Does not: anything that changes an amount, and credits (`money`), which are made from findings.
"""
