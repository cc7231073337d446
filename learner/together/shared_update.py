"""One update of several learners: what they exchange, and how an error of one reaches all."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import torch

from epibatch.core.errors import ConfigError, OtherLearnerError

from ..loss import numbers
from .learners import Learners

ResultT = TypeVar("ResultT")
_END = object()


class SharedUpdate:
    """One update of several learners, as one of them sees it.

    Learners meet at exchanges: `gather`, `finish` and `add_up`. Between two of them each works by itself, in
    `attempt`. An error there is not raised at once, because the others wait at the next exchange. There this learner
    says so, and all learners raise: this one its error, the others an `OtherLearnerError`.

    Learner pipelines get this object as `shared_data["learners"]`. A piece that needs a statistic of all learners'
    rows calls `gather` in each call of its pipeline.

    Args:
        learners: The learners.

    Examples:
        >>> SharedUpdate(Learners()).gather({"rows": 3})
        [{'rows': 3}]
    """

    def __init__(self, learners: Learners) -> None:
        self._learners = learners
        self._error: Exception | None = None
        self._told: OtherLearnerError | None = None

    @property
    def index(self) -> int:
        """The number of this learner, from 1."""
        return self._learners.index

    @property
    def count(self) -> int:
        """The number of learners; 1 for a learner that is alone, whose errors are raised at once."""
        return self._learners.count

    @property
    def failed(self) -> bool:
        """True if an attempt of this learner raised an error that the others do not know yet."""
        return self._error is not None

    def attempt(self, function: Callable[..., ResultT], *args: Any) -> ResultT | None:
        """Return a function's result; None if it raises an error, or an earlier attempt did.

        Raises:
            OtherLearnerError: another learner failed, which this one heard in an exchange of the function.
            Exception: what the function raised, for a learner that is alone.
        """
        if self._learners.count == 1:
            return function(*args)
        if self._error is not None:
            return None
        try:
            return function(*args)
        except Exception as error:
            if self._told is not None:  # the error passed through code that may have changed it
                raise self._told from None
            self._error = error
            return None

    def attempt_each(self, items: Iterator[ResultT] | None) -> Iterator[ResultT | None]:
        """Yield the items of an iterator; None again and again after an error, until an exchange raises it.

        Args:
            items: The iterator; None if an attempt to make it failed.
        """
        while (item := self.attempt(next, items, _END)) is not _END:
            yield item

    def gather(self, value: Any) -> list[Any]:
        """Return the values of the learners that make this call, in the order of their indexes.

        A learner whose share has no episodes calls no pipeline, and has no value here. All others make the same calls
        in the same order.

        Args:
            value: This learner's value; it can be pickled.

        Raises:
            OtherLearnerError: another learner failed.
        """
        return [answer for done, answer in self._exchanged(value, done=False) if not done]

    def finish(self, value: Any) -> list[Any]:
        """Wait until all learners are at this point, while some of them may still `gather`; return their values.

        Args:
            value: This learner's value; it can be pickled.

        Raises:
            Exception: what an attempt of this learner raised.
            OtherLearnerError: another learner failed.
        """
        answers = self._exchanged(value, done=True)
        while not all(done for done, _ in answers):
            answers = self._exchanged(value, done=True)
        return [answer for _, answer in answers]

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace the entries of a tensor by their sums over all learners."""
        self._learners.add_up(tensor)

    def fail(self) -> NoReturn:
        """Raise this learner's error, or an OtherLearnerError; for when all learners know that one has failed."""
        self._exchanged(None, done=True)
        raise AssertionError("fail() is for learners of which one has failed")

    def _exchanged(self, value: Any, *, done: bool) -> list[tuple[bool, Any]]:
        if self._told is not None:  # the others make no further exchange
            raise self._told
        text = None if self._error is None else "".join(traceback.format_exception_only(self._error)).strip()
        answers = self._learners.gather((text, done, value))
        texts = {index: answer[0] for index, answer in enumerate(answers, 1) if answer[0] is not None}
        if self._error is not None:
            raise self._error
        if texts:
            index = min(texts)
            self._told = OtherLearnerError(
                f"learner {self.index} of {self._learners.count}",
                expected="an update that all learners make together",
                found=f"learner {index} failed: {texts[index]}",
                do="correct the cause; the steps before it were made on all learners, this one on none",
            )
            raise self._told
        return [(answer[1], answer[2]) for answer in answers]


class SharedGradients:
    """Means of one module's gradients and metrics over the rows of all learners, in one sum per minibatch.

    Args:
        parameters: The parameters, the same on all learners.

    Attributes:
        names: Of the metrics, as all learners know them; None before the first minibatch.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self.names: list[str] | None = None
        self._buffer: torch.Tensor | None = None

    def forget_names(self) -> None:
        """Let all learners agree on the names of the metrics again."""
        self.names = self._buffer = None

    def _allocate(self) -> torch.Tensor:
        """Make the buffer that learners add up: errors, other names, rows, metrics, gradients that exist, gradients."""
        self._num_numbers = 3 + len(self.names or ())
        sizes = [self._num_numbers, len(self._parameters), *(parameter.numel() for parameter in self._parameters)]
        wide = any(parameter.dtype == torch.float64 for parameter in self._parameters)
        buffer = torch.zeros(
            sum(sizes), dtype=torch.float64 if wide else torch.float32, device=self._parameters[0].device
        )
        self._numbers, self._exist, *gradients = torch.split(buffer, sizes)
        self._gradients = [part.view(like.shape) for part, like in zip(gradients, self._parameters)]
        return buffer

    def reduce(
        self, shared: SharedUpdate, metrics: Mapping[str, Any] | None, num_rows: int
    ) -> tuple[Mapping[str, Any], int]:
        """Replace the gradients by their means over the rows of all learners, and return those of the metrics.

        A parameter that no learner has a gradient of has none afterwards. The means of one learner are its own.

        Args:
            shared: The update.
            metrics: This learner's metrics, numbers or scalar tensors; None without rows, or if it failed.
            num_rows: This learner's rows, which weight its gradients and metrics.

        Returns:
            The metrics, and the number of rows of all learners.

        Raises:
            Exception: what an attempt of this learner raised.
            OtherLearnerError: another learner failed.
            ConfigError: the learners have metrics of other names.
        """
        if shared.count == 1:
            return metrics or {}, num_rows
        values = None if metrics is None else shared.attempt(numbers, metrics)
        while True:
            buffer = self._filled(values, num_rows, failed=shared.failed)
            shared.add_up(buffer)
            failed, renamed, total, *sums = self._numbers.tolist()
            if failed:
                shared.fail()
            if not renamed:
                break
            self._agree_on_names(shared, values)
        total = max(total, 1.0)
        buffer[self._num_numbers + len(self._parameters) :].div_(total)
        for parameter, gradient, number in zip(self._parameters, self._gradients, self._exist.tolist()):
            parameter.grad = gradient.to(parameter.dtype) if number else None
        return {name: value / total for name, value in zip(self.names or (), sums)}, round(total)

    def _filled(self, metrics: Mapping[str, float] | None, num_rows: int, *, failed: bool) -> torch.Tensor:
        buffer = self._buffer = self._allocate() if self._buffer is None else self._buffer.zero_()
        if failed:
            self._numbers[0] = 1.0
        elif metrics is not None and list(metrics) != self.names:
            self._numbers[1] = 1.0
        elif metrics is not None:
            for gradient, parameter in zip(self._gradients, self._parameters):
                if parameter.grad is not None:
                    gradient.copy_(parameter.grad)
            buffer.mul_(num_rows)
            exist = [parameter.grad is not None for parameter in self._parameters]
            head = [0, 0, num_rows, *(value * num_rows for value in metrics.values()), *exist]
            buffer[: len(head)].copy_(torch.tensor(head, dtype=torch.float64))
        return buffer

    def _agree_on_names(self, shared: SharedUpdate, metrics: Mapping[str, float] | None) -> None:
        lists = [names for names in shared.finish(None if metrics is None else list(metrics)) if names is not None]
        if any(names != lists[0] for names in lists):
            raise ConfigError(
                "metrics of the loss",
                expected="the same names on all learners",
                found="; ".join(", ".join(names) for names in lists),
                do="return the same metrics for every minibatch",
            )
        self.names, self._buffer = lists[0], None
