"""Checkpoints in other formats: safetensors, Orbax and zarr, read box by box and written streamed."""
