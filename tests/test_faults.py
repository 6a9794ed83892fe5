"""The checks themselves: right code passes all six, and each planted fault is caught."""

import checks
import jax
import pytest
from faults import FAULTS

FILTERED = dict(temperature=0.6, top_k=3)


def passes(number: int, how: dict) -> bool:
    """Whether check `number` passes on the small models; `how` chooses the table model."""
    if number == 1:
        return checks.algebra_error() <= 1e-6
    if number == 2:
        table = checks.table_pair(batch_size=3, likeness=0.8, **how)
        return not (
            checks.greedy_differences(table, gammas=(3,))
            or checks.greedy_differences(checks.t5_pair(), gammas=(3,))
        )
    if number == 3:
        return checks.law_p_value(checks.table_pair(**how), gamma=2, how=FILTERED) > 1e-4
    if number == 4:
        rejected, accept = checks.rejections_of_itself(checks.table_pair(likeness=1, **how))
        return rejected == 0 and accept > 1 - 1e-4
    if number == 5:
        table = checks.table_pair(batch_size=3, likeness=0.8, **how)
        return checks.proposal_error(table, how=FILTERED) < 1e-5
    try:
        checks.assert_keys_used_once(checks.table_pair(**how))
    except jax.errors.KeyReuseError:
        return False
    return True


@pytest.fixture
def fresh_programs():
    """Planted functions must be traced, and must not be left behind in compiled programs."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.parametrize("number", range(1, 7))
def test_right_code_passes(number):
    assert passes(number, {})


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_is_caught(fault, monkeypatch, fresh_programs):
    how = fault(monkeypatch) or {}
    # Check 2 compiles most: it is asked only where no other one catches the fault.
    assert not passes(min(FAULTS[fault], key=lambda number: (number == 2, number)), how)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_which_checks_catch_a_fault(fault, number, monkeypatch, fresh_programs):
    how = fault(monkeypatch) or {}
    assert passes(number, how) == (number not in FAULTS[fault])
