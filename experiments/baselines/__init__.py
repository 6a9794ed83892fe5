"""Other programs that decode the same weights, to compare with; needs the extra `baselines`.

Each is a function of a source's ids (EOS included) that returns the output's ids (EOS included, as
far as there is one), greedy, one sentence at a time.
"""

import os
from collections.abc import Callable, Sequence

NUM_THREADS = os.cpu_count() or 1
Decode = Callable[[Sequence[int]], list[int]]
