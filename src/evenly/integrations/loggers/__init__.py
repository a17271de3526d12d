"""Logs in TensorBoard, Weights & Biases and MLflow: during a run, and afterwards from the run's folder.

Each library is imported by its own module and nowhere else. To log during a run is to log its folder after an epoch, so
both ways leave the same.

>>> from evenly.integrations.loggers import log_folder
>>> log_folder("runs/a", "tensorboard")
"""

from evenly.integrations.loggers.live import live_log, log_finished
from evenly.integrations.loggers.sending import Logged, connect, log_folder, log_run

__all__ = ["Logged", "connect", "live_log", "log_finished", "log_folder", "log_run"]
