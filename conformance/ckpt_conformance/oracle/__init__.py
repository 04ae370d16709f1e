"""The oracle: what a store holds, judged by the specification alone."""
