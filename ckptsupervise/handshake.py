"""How two supervisors prove to each other, before anything else is said, that they belong to the same job.

Whoever listens has a token, which is in the run's store alone: who can read the run can talk to it, and nobody else. Neither side
sends the token. Each proves by it, of a number that the other has just drawn, that it knows it; so what was overheard once is of
no use again, and who has taken over an address where a supervisor was is not taken for it. Somebody between the two who passes
the proofs on can change what follows: networks where that is possible are not what this is for.
"""

from __future__ import annotations

import hmac
import secrets

from ckptsupervise.wire import Challenge, Channel, LinkLost, Proof

GREETING = 5.0
"""Seconds in which whoever connects has to prove itself, and say what for."""

GREETING_BYTES = 1024
"""The longest message of somebody who has proven nothing yet."""


def new_token() -> str:
    """64 hexadecimal digits that nobody can guess."""
    return secrets.token_hex(32)


def admit(channel: Channel, token: str) -> None:
    """As who listens: let in who knows `token`, and prove to know it as well. Raises `LinkLost`."""
    drawn = _number()
    channel.send(Challenge(number=drawn))
    said = channel.receive(GREETING_BYTES)
    if not isinstance(said, Proof) or not _equal(said.proof, _proof(token, "connects", drawn, said.number)):
        raise LinkLost("does not belong to this job")
    channel.send(Proof(number=drawn, proof=_proof(token, "listens", drawn, said.number)))


def enter(channel: Channel, token: str) -> None:
    """As who connects: prove to know the `token` of who should listen there, and see that it does, too. Raises `LinkLost`."""
    drawn, asked = _number(), channel.receive(GREETING_BYTES)
    if not isinstance(asked, Challenge):
        raise LinkLost("is no supervisor")
    channel.send(Proof(number=drawn, proof=_proof(token, "connects", asked.number, drawn)))
    said = channel.receive(GREETING_BYTES)
    if not isinstance(said, Proof) or not _equal(said.proof, _proof(token, "listens", asked.number, drawn)):
        raise LinkLost("is another supervisor")


def _number() -> str:
    return secrets.token_hex(16)


def _proof(token: str, side: str, asked: str, drawn: str) -> str:
    return hmac.new(token.encode(), f"{side} {asked} {drawn}".encode(), "sha256").hexdigest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
