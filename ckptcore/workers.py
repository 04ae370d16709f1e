"""Plain threads that take tasks from a queue.

The executors of the standard library refuse work as soon as the main thread has ended. A save that is still
under way then must go on: it may be the last one of its job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Self, TypeVar

_GRANTED: ContextVar[int | None] = ContextVar("threads that a pool may start", default=None)

NICENESS = 10
"""Added to that of the process. Such a thread still gets a tenth of a core that another one wants all of: it does not starve."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Task:
    future: Future[Any]
    call: Callable[..., Any]
    args: tuple[Any, ...]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call(*self.args)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it reaches whoever waits for the future
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Workers:
    """`count` threads, or as many as the system or `at_most` grants; without any, tasks run in the thread that submits them.

    Close it, or use it as a context manager. The threads are daemons: who waits for them keeps the process alive. `behind`: where
    there are fewer cores than threads that want one, others go first (on Linux; elsewhere a thread has no priority of its own).
    """

    def __init__(self, count: int, name: str, *, behind: bool = False) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[Thread] = []
        with suppress(RuntimeError):  # the system has no more threads for us
            granted = _GRANTED.get()
            for number in range(count if granted is None else min(count, granted)):
                work = partial(_work, self._tasks, behind=behind)
                thread = Thread(target=work, name=f"{name}-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)

    @property
    def size(self) -> int:
        """The number of threads."""
        return len(self._threads)

    def submit(self, call: Callable[..., Result], *args: Any) -> Future[Result]:
        """Run `call(*args)` in a thread; its result, or what it raised, comes through the future."""
        task = _Task(Future(), call, args)
        if self._threads:
            self._tasks.put(task)
        else:
            task.run()
        return task.future

    def map(self, call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """`call(item)` of every item, in their order. Raises the error of the first that failed."""
        return [future.result() for future in [self.submit(call, item) for item in items]]

    def close(self, *, wait: bool = True) -> None:
        """Drop what has not begun, wait for the rest if that is wanted, and end the threads."""
        with suppress(Empty):
            while task := self._tasks.get_nowait():
                task.future.cancel()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads if wait else ():
            thread.join()
        self._threads.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Inside of it no pool that this thread makes starts more threads; a simulation, which grants none, is deterministic."""
    token = _GRANTED.set(threads)
    try:
        yield
    finally:
        _GRANTED.reset(token)


def _work(tasks: SimpleQueue[_Task | None], *, behind: bool) -> None:
    if behind and sys.platform == "linux":
        with suppress(OSError):  # a sandbox that forbids it; it is a courtesy
            os.nice(NICENESS)  # of this thread alone: Linux has it so, against POSIX
    while task := tasks.get():
        task.run()
        del task  # a thread that waits holds nobody's data
