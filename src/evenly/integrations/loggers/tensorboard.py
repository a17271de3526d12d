"""TensorBoard: one event file in the run's folder, which follows from the run's rows.

The file holds the settings, a record per row, and the results. To log a run is to make its file hold the records that
the run has now: records that agree stay, the others are written. So a second call adds nothing, a record that a kill
cut short is replaced, and rows that a resumed run computed anew take the place of the old ones. TensorBoard stores
values as 32-bit floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from evenly.files import atomic, writing
from evenly.integrations.loggers.folders import LoggedRun
from evenly.integrations.loggers.points import RESULTS, Point

FILE = "events.out.tfevents.0.evenly"
"""TensorBoard finds event files by "tfevents" in their names, and names a run by its folder."""
FRAME = 16
"""Bytes of a record beside its content: its length, 8, and two checksums, 4 each."""
TABLE = [
    *(f"{RESULTS}/{split}/{name}" for split in ("test", "validation") for name in ("accuracy", "worst_group")),
    f"{RESULTS}/cost_multiple",
]
"""The columns of results in TensorBoard's table of hyperparameters."""
SOMETIMES = {"method_options": "", "model_options": "", "data_options": "", "control_of": "", "budget": 0.0}
"""Settings that not every run has. TensorBoard takes the columns of one run for all runs, so they are named in each."""
TYPES = {bool: api_pb2.DATA_TYPE_BOOL, int: api_pb2.DATA_TYPE_FLOAT64, float: api_pb2.DATA_TYPE_FLOAT64}


class TensorBoardLogger:
    """Writes the event files of runs."""

    failures = (OSError,)

    def __init__(self) -> None:
        self._last: dict[Path, tuple[int, int]] = {}  # records and bytes of each file, as this object left it

    def add(self, run: LoggedRun) -> int:
        """Bring a run's file up to date; how many points were written."""
        path, events = run.folder / FILE, _events(run)
        size = path.stat().st_size if path.exists() else 0
        kept, left = self._last.get(path, (0, -1))
        if size != left or kept > len(events):
            records = _records(path)
            pairs = zip(map(_timeless, records), events, strict=False)
            kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if not kept or size != sum(len(record) + FRAME for record in records[:kept]):
                with atomic(path) as file:
                    _write(file, records[:kept])
                size = path.stat().st_size
        if kept < len(events):
            for event in events[kept:]:
                event.wall_time = run.written
            with writing(path), path.open("ab") as file:
                _write(file, [event.SerializeToString(deterministic=True) for event in events[kept:]])
        self._last[path] = len(events), path.stat().st_size
        return sum(value.HasField("simple_value") for event in events[kept:] for value in event.summary.value)

    def where(self, run: LoggedRun) -> str:
        """The file."""
        return str(run.folder / FILE)

    def close(self) -> None:
        """Every call leaves the files whole."""


def connect() -> TensorBoardLogger:
    """There is nothing to connect to."""
    return TensorBoardLogger()


def _records(path: Path) -> list[bytes]:
    """The records of a file, up to one that is damaged or was cut short."""
    return list(RawEventFileLoader(str(path)).Load()) if path.exists() else []


def _timeless(record: bytes) -> Any:
    event = Event.FromString(record)
    event.ClearField("wall_time")
    return event


def _write(file: IO[bytes], records: Sequence[bytes]) -> None:
    writer = RecordWriter(file)
    for record in records:
        writer.write(record)


def _events(run: LoggedRun) -> list[Any]:
    """The records of a run, without the time of their writing."""
    rows = [_of_points(row.points, row.epoch) for row in run.rows]
    events = [Event(file_version="brain.Event:2"), Event(summary=_settings(run)), *rows]
    if run.results is not None:
        ended = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS)
        events.append(_of_points(run.results, run.results[0].step))
        events.append(Event(summary=Summary(value=[_plugin(metadata.SESSION_END_INFO_TAG, session_end_info=ended)])))
    return events


def _of_points(points: Sequence[Point], step: int) -> Any:
    values = [Summary.Value(tag=point.tag, simple_value=point.value) for point in points]
    return Event(step=step, summary=Summary(value=values))


def _settings(run: LoggedRun) -> Any:
    """The settings as TensorBoard's table of hyperparameters takes them, and the columns of the table."""
    settings = {name: _in_one(value) if isinstance(value, Mapping) else value for name, value in run.settings.items()}
    started = plugin_data_pb2.SessionStartInfo(group_name=run.id)
    for name, value in settings.items():
        kind = "bool_value" if isinstance(value, bool) else "string_value" if isinstance(value, str) else "number_value"
        setattr(started.hparams[name], kind, value)
    columns = [
        api_pb2.HParamInfo(name=name, type=TYPES.get(type(value), api_pb2.DATA_TYPE_STRING))
        for name, value in (SOMETIMES | settings).items()
    ]
    metrics = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag) for tag in TABLE]
    experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=metrics)
    return Summary(
        value=[
            _plugin(metadata.EXPERIMENT_TAG, experiment=experiment),
            _plugin(metadata.SESSION_START_INFO_TAG, session_start_info=started),
        ]
    )


def _in_one(options: Mapping[str, Any]) -> str:
    """Options in one column, since methods have different ones."""
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _plugin(tag: str, **content: Any) -> Any:
    """A value of the table; its bytes are the same in every process."""
    packed = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content)
    data = SummaryMetadata.PluginData(
        plugin_name=metadata.PLUGIN_NAME, content=packed.SerializeToString(deterministic=True)
    )
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=data), tensor=metadata.NULL_TENSOR)
