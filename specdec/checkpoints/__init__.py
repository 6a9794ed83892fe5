"""Checkpoints: `native` is our own form, `huggingface` reads the public ones."""
