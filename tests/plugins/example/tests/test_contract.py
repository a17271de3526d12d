"""What evenly asks of every method, data set and optimizer, evenly's own included."""

from evenly.testing import check_dataset, check_method, check_optimizer


def test_highest_loss() -> None:
    check_method("highest_loss")


def test_two_features() -> None:
    check_dataset("two-features")


def test_lion() -> None:
    check_optimizer("lion")


def test_usam() -> None:
    check_optimizer("usam")
