"""The pipeline: rules, settings, composition root and command."""
