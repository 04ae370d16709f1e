"""The conformance suite of the training checkpoint format."""
