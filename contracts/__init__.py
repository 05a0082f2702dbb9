"""What crosses a border: JSON Schemas (`v1/`), Arrow schemas (`lake`), the SQL of schema `eai` (`migrations/`), policies.

Imports nothing of ours. Rules of accounting, connections and files do not belong here.
"""
