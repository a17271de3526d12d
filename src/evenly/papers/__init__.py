"""The papers' experiments as functions: one file each, with the settings and our choices where the paper gives none."""
