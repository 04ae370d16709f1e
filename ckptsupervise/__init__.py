"""Supervision: ranks are started, watched, ended and started again, and what that cost is recorded in the run.

`ckpt supervise` is this package on the command line. It needs the extra `supervise`. What is not named here is internal.
"""
