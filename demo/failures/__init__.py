"""A training run to which everything happens that happens to long runs: `make demo-failures`.

`python -m demo.failures` trains under `ckpt supervise`, with real processes: a rank is slow, one is killed, one hangs, the
machine is wanted back, the coordinator dies in the middle of a commit, a slot fails for good and comes back later. What was lost
is counted, and what came out is compared with a run to which nothing happened. What goes wrong is done by the training programs
of this package to themselves; the supervisor is the one that users start.
"""
