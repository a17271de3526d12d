"""``python -m evenly`` is ``evenly``."""

from evenly.cli import main

if __name__ == "__main__":  # worker processes import this file, too
    main()
