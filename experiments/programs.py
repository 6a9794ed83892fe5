"""Compiled programs of a long run."""

import jax


def forget() -> None:
    """Drops all compiled programs; those that are needed again are compiled again.

    On a CPU every program holds memory maps, of which Linux grants a process 65,530 by default: a
    run through many tasks, drafts and gammas would end with "Cannot allocate memory" while most of
    the memory is free.
    """
    jax.clear_caches()
