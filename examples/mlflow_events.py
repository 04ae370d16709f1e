"""What a Checkpointer does, in MLflow: durations and sizes as metrics by training step, what goes wrong as tags.

    with mlflow.start_run() as run, Checkpointer(url, on_event=mlflow_events.listener(run.info.run_id)) as ckpt: …

MLflow's active run belongs to one thread, and some events come from others: so the run is named.
"""

from __future__ import annotations

from ckptcore.events import Event, Listener

TROUBLE = {"aborted", "failed", "undecided", "superseded", "fallen-back", "damaged", "verification-failed", "collection-failed"}


def listener(run_id: str) -> Listener:
    """An `on_event` for an MLflow run. Give it on rank 0; the others have little to add."""
    from mlflow import MlflowClient  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    client = MlflowClient()

    def listen(event: Event) -> None:
        step = 0 if event.generation is None else event.generation.step
        for name, value in event.detail.items():
            if isinstance(value, int | float):
                client.log_metric(run_id, f"checkpoint.{event.kind}.{name}", value, step=step)
        if event.kind == "committed":
            client.set_tag(run_id, "checkpoint.newest", str(event.generation))
        if event.kind in TROUBLE:
            client.set_tag(run_id, f"checkpoint.{event.kind}", f"{event.generation}: {event.message}"[:5000])

    return listen
