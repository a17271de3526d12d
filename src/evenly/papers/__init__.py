"""Four papers as executable claims: a package per paper, and the papers' toy experiments that train."""
