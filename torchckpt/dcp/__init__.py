"""`torch.distributed.checkpoint` on this project's protocol: a save through it becomes a generation of a run.

```
writer = torchckpt.dcp.StorageWriter("gs://bucket/run-42", derived={"schedule": "step", "rng": "step", "data": "step"})
dcp.save({"model": model_state, "optimizer": optimizer_state}, storage_writer=writer, checkpoint_id=f"step-{step}")
dcp.load({"model": model_state, "optimizer": optimizer_state}, storage_reader=torchckpt.dcp.StorageReader("gs://bucket/run-42"))
```

The first key of a state dict is the component, what lies below it the path, so that such a checkpoint reads like one of
`torchckpt.Checkpointer`, and the other way round. What differs follows from how DCP takes state dicts apart:

- int keys of dicts become text, and empty containers are not stored;
- tied weights are stored under each of their names;
- what is no DTensor counts as replicated: tensors and values that differ between ranks are refused by name, where DCP would
  keep one rank's. State that is each rank's own goes through `per_rank=`; BatchNorm's buffers under DDP have to be made equal;
- the meshes are not recorded, so a `Checkpointer` that resumes from it needs `accept_guarantee="coverage"`.
"""

from torchckpt.dcp.reader import StorageReader
from torchckpt.dcp.writer import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
