"""Where work is executed: in this process, side by side on one GPU, or in several processes."""
