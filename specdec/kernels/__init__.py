"""What XLA does slowly on a CPU, in C++; each with a form in plain JAX that it must equal."""
