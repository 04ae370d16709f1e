"""Deterministic simulation of the protocol code: many processes, one store, no waiting, every run reproducible from its seed.

The processes run the code of `ckptcore` as it is. Exactly one of them runs at a time; every store operation and every
sleep is a point where another may go on, a process may die, or the store may misbehave within what the
specification allows. Invariants are checked after every write that matters. See README.md.
"""
