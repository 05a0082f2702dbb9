"""The accounting rules, pure: Arrow tables and values in, Arrow tables and values out; no I/O, no clock."""
