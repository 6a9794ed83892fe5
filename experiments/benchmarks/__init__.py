"""Where the time goes: the machine, steps of models, rounds of the loop, whole decoding."""
