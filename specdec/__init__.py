"""Speculative decoding in JAX: a target's own output law, in fewer runs of the target.

Start at `specdec.text` (strings) or `specdec.speculative` (arrays).
"""
