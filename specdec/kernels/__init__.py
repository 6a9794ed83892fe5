"""Compiled code for what XLA does slowly, each with a form in plain JAX that it must equal."""
