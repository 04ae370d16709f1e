"""What a Checkpointer does, in Weights & Biases: durations and sizes as metrics, what goes wrong as alerts.

    run = wandb.init(project="…")
    with Checkpointer(url, on_event=wandb_events.listener(run)) as ckpt: …

Some events come from background threads, between two steps of the training loop: `commit=False` adds to the step that the
loop logs next, and begins none.
"""

from __future__ import annotations

from typing import Any

from ckptcore.events import Event, Listener

ALERTS = {"aborted", "failed", "undecided", "superseded", "fallen-back", "damaged", "verification-failed", "collection-failed"}


def listener(run: Any) -> Listener:
    """An `on_event` for the run that `wandb.init` returned. Give it on rank 0; the others have little to add."""
    import wandb  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    def listen(event: Event) -> None:
        numbers = {name: value for name, value in event.detail.items() if isinstance(value, int | float)}
        if numbers:
            run.log({f"checkpoint/{event.kind}/{name}": value for name, value in numbers.items()}, commit=False)
        if event.kind == "committed" and event.generation is not None:
            run.summary["checkpoint/newest"] = str(event.generation)
        if event.kind in ALERTS:
            title = f"checkpoint {event.kind}: {event.generation or 'run'}"
            run.alert(title=title, text=event.message, level=wandb.AlertLevel.WARN)

    return listen
