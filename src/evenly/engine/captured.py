"""The whole step on a GPU, recorded once and replayed: gathering, augmentation, passes, perturbation, update.

A step of a small network is a few hundred kernels of some microseconds each, and starting them one by one takes longer
than running them. Recorded in a CUDA graph they start together; compiled, they are also fewer. A replay reads which
examples, which epoch and which learning rate from tensors that stay where they are.
"""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from evenly.engine.batches import Batch, Batches, Gather, gathered
from evenly.engine.steps import State, Step
from evenly.optim.perturbed import PerturbedOptimizer
from evenly.randomness import random_state

WARM_UPS = 3
COMPILE_STEPS = 2000
"""Runs of fewer steps are recorded without being compiled, which takes a minute where it has not been done before."""


class NotCapturedError(Exception):
    """A step that cannot be recorded, and why."""


def why_not(batches: Batches, optimizer: Optimizer) -> str | None:
    """Why a step on these batches with this optimizer cannot be recorded; None if it may be tried."""
    base = optimizer.base if isinstance(optimizer, PerturbedOptimizer) else optimizer
    groups = optimizer.param_groups
    if not (batches.streamed or isinstance(batches.split.inputs, Tensor)):
        return "the examples are read one by one, not held on the GPU"
    if batches.batch_size is None:
        return "the batch is the whole training set"
    if len(batches.split) < batches.batch_size:
        return f"no batch of {batches.batch_size} is full with {len(batches.split)} examples"
    if type(base) is SGD:
        # recorded momentum starts from zeros, where the first step of plain SGD takes the gradient undamped
        return "SGD's dampening treats its first step apart" if any(group["dampening"] for group in groups) else None
    if type(base) in (Adam, AdamW):
        return None if all(group["capturable"] for group in groups) else f"{type(base).__name__} is not capturable"
    return f"{type(base).__name__} is not known to be capturable"


def capture(step: Step, batches: Batches, steps: int) -> tuple[CapturedStep | None, str]:
    """The step recorded, where it can be, and in a few words how steps are taken.

    Args:
        steps: how many there will be, which decides whether compiling is worth its time.
    """
    reason = why_not(batches, step.optimizer)
    if reason is None:
        step.model.train()
        try:
            recorded = CapturedStep(step, batches, compiled=steps >= COMPILE_STEPS)
        except NotCapturedError as error:
            reason = str(error)
        else:
            return recorded, "captured" if recorded.uncompiled is None else f"captured: {recorded.uncompiled}"
    return None, f"plain: {reason}"


class CapturedStep:
    """A `Step` on full batches of a split, recorded and replayed. Anything the recording changed is put back.

    Args:
        step: the step; batches of another size than the recorded one go on through it.
        batches: where examples come from.
        compiled: fuse the kernels first.
    """

    def __init__(self, step: Step, batches: Batches, compiled: bool) -> None:
        assert batches.batch_size is not None
        self.step, self.batches, self.size = step, batches, batches.batch_size
        self.place = torch.arange(self.size, device=step.device)
        self.rows = next(batches.rows([self.place]))
        self.rates = [_on_device(group["lr"], step.device) for group in step.optimizer.param_groups]
        self.uncompiled: str | None = None if compiled else "too few steps to be worth it"
        self._plain_loss = step.per_example_loss
        self._gather: Gather = gathered
        self._settings = _settings_of(step.optimizer)
        with self._put_back(), _fastest_convolutions():
            if compiled:
                try:
                    self._warm_up(compiled=True)
                except (torch.OutOfMemoryError, NotCapturedError):
                    raise
                except Exception as error:  # of the compiler's, which can raise anything
                    self.uncompiled = _first_line(error)
            if self.uncompiled is not None:
                try:
                    self._warm_up(compiled=False)
                except RuntimeError as error:
                    if "synchroniz" not in str(error):
                        raise
                    raise NotCapturedError("the step reads from the GPU") from error
            self.graph = torch.cuda.CUDAGraph()
            before = step.cost
            try:
                with torch.cuda.graph(
                    self.graph, stream=torch.cuda.current_stream(step.device), capture_error_mode="thread_local"
                ):
                    self._run()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise NotCapturedError(_first_line(error)) from error
            self.cost = step.cost - before

    def __call__(self, place: Tensor, rows: Tensor | None = None) -> None:
        """Take a step on the examples at these places, with the inputs that `Batches.rows` gives for them."""
        if len(place) != self.size:
            self._take(self.batches.at(place, self.batches.augment, rows=rows))
            return
        self.place.copy_(place)
        if self.rows is not None and rows is not None:
            self.rows.copy_(rows)
        self.graph.replay()
        self.step.cost += self.cost

    def holds(self) -> bool:
        """Whether the optimizer's settings, but for the learning rates, are those that were recorded."""
        return self._settings == _settings_of(self.step.optimizer)

    def set_rates(self) -> None:
        """Take over learning rates that were set as numbers."""
        for group, rate in zip(self.step.optimizer.param_groups, self.rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(group["lr"])
                group["lr"] = rate

    def _warm_up(self, compiled: bool) -> None:
        """Run a few times, so that whatever is made on first use (optimizer state, workspaces, kernels) is there."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's advice is not for the user
            if compiled:
                self.step.per_example_loss, self._gather = _compiled(self._plain_loss), _compiled(gathered)
            else:
                self.step.per_example_loss, self._gather = self._plain_loss, gathered
            self.set_rates()
            # sweeps make it again for every size and network, and the default is to give up after eight
            with torch._dynamo.config.patch(recompile_limit=64):
                for _ in range(WARM_UPS - 1):
                    self._run()
                self._rehearse()
        torch.cuda.synchronize(self.step.device)

    def _rehearse(self) -> None:
        """The last warm-up: refuse what a recording would get wrong unsaid, or could not be recorded.

        A replay runs no Python: what that draws, decides or puts in another tensor's place would stay as recorded.
        Reading from the GPU is refused here because a recording that fails leaves torch's allocator in disorder.
        """
        step = self.step
        before = [*map(id, _tensors(step.model, step.optimizer, step.state))], sorted(step.state)
        on_host = _state_on_host()
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            self._run()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        after = [*map(id, _tensors(step.model, step.optimizer, step.state))], sorted(step.state)
        if before != after:
            raise NotCapturedError("a layer or the objective puts new tensors in the place of its own")
        if on_host != _state_on_host():
            raise NotCapturedError("the step draws random numbers on the host")

    def _run(self) -> None:
        self._take(self.batches.at(self.place, self.batches.augment, self._gather, self.rows))

    def _take(self, batch: Batch) -> None:
        kept = dict(self.step.state)
        self.step(batch)
        for key, value in kept.items():  # an objective may put a new tensor in its place; a replay writes the old one
            if self.step.state[key] is not value:
                value.copy_(self.step.state[key])
                self.step.state[key] = value

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """Leave weights, buffers, optimizer and objective as they were; state that came into being starts at zero."""
        step = self.step
        owned = [(m, name, b) for m in step.model.modules() for name, b in m.named_buffers(recurse=False)]
        state = dict(step.state)
        before = {tensor: tensor.detach().clone() for tensor in _tensors(step.model, step.optimizer, step.state)}
        cost = step.cost
        try:
            yield
        finally:
            for module, name, buffer in owned:
                if getattr(module, name) is not buffer:  # a layer of the user's own may put a new tensor in its place
                    setattr(module, name, buffer)
            step.state.clear()
            step.state.update(state)
            if isinstance(step.optimizer, PerturbedOptimizer):
                step.optimizer.ascended = False
            with torch.no_grad():
                for tensor in _tensors(step.model, step.optimizer, step.state):
                    if tensor in before:
                        tensor.copy_(before[tensor])
                    else:
                        tensor.zero_()
            step.read()  # forget what the rehearsals saw
            step.cost, step.per_example_loss = cost, self._plain_loss
            step.optimizer.zero_grad()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """A block on a CUDA stream of its own, as recording needs one; on another device, or on such a stream, nothing."""
    if device.type != "cuda" or torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
        yield
        return
    around, own = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    own.wait_stream(around)
    try:
        with torch.cuda.stream(own):
            yield
    finally:
        around.wait_stream(own)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled once for all networks: those of one kind share the code that was made for the first."""
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    return compiled


@contextmanager
def _fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms on the warm-up's shapes; the one it finds is what is recorded."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _tensors(model: nn.Module, optimizer: Optimizer, state: State) -> list[Tensor]:
    """Everything that a step may change."""
    of_optimizer = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, Tensor)]
    return [*model.parameters(), *model.buffers(), *of_optimizer, *state.values()]


def _state_on_host() -> bytes:
    of_python, of_numpy, of_torch, _ = random_state()
    return pickle.dumps((of_python, of_numpy, of_torch.numpy().tobytes()))


def _settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{key: group[key] for key in group if key not in ("params", "lr")} for group in optimizer.param_groups]


def _on_device(rate: float | Tensor, device: torch.device) -> Tensor:
    return torch.as_tensor(rate, dtype=torch.float32).to(device, copy=True)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
