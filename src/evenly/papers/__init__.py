"""The papers' experiments as functions: one file each, with the settings, what the paper leaves open, and what was read
into it."""
