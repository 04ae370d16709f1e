"""`ckpt export …` and `ckpt import …`: other formats, a command each."""
