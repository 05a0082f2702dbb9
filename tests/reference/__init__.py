"""A slow, independent second implementation of the accounting rules, for tests only."""
