"""The `ckpt` command: what is in a run, what can be resumed from, and the few things that a person may change by hand.

It needs no framework, and never disturbs a live job: reading claims nothing, and what changes anything follows the protocol.
Each command is a thin shell: what it does is in `ckptcore`, what it prints is a record of `ckptcli` with a schema.
"""
