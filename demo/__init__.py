"""A training run that is killed twice and never notices: `make demo`.

`python -m demo` starts training jobs as any supervisor would, has their processes killed with
SIGKILL, restarts them, looks at what lies in the store with nothing but a JSON parser, and
compares what came out with a run that was never interrupted. It never imports JAX itself.
"""
