"""Tasks shared by processes."""

import os
from functools import partial

import pytest

from afd_dse.search.parallel import in_processes, usable_processes


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def fails(number: int) -> tuple[int, int]:
    raise ValueError(f"task {number}")


def dies_elsewhere(here: int) -> tuple[int, int]:
    if os.getpid() != here:
        os._exit(9)
    return -1, here


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks(processes: int) -> None:
    found = in_processes([partial(square, number) for number in range(7)], processes)
    assert [value for value, _ in found] == [number * number for number in range(7)]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_a_task_is_raised(processes: int) -> None:
    with pytest.raises(ValueError, match="task 1"):
        in_processes([partial(square, 0), partial(fails, 1), partial(square, 2)], processes)


def test_tasks_of_a_process_that_dies_are_done_here() -> None:
    found = in_processes([partial(dies_elsewhere, os.getpid()) for _ in range(4)], 2)
    assert found == [(-1, os.getpid())] * 4


def test_one_or_two_processes_are_worth_using() -> None:
    assert usable_processes() in (1, 2)
