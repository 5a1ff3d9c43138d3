"""Threads of torch: one for small problems, what is free for large ones, and back afterwards."""

import os
from threading import Event, Thread

import pytest
import torch

from gpcache.support import threads
from gpcache.support.threads import SMALL, free_cores, limited_threads, take_free_cores

CPU = torch.device("cpu")


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Sets how many threads of the machine and of this process run now, as the kernel tells it."""

    def write(text, own=1):
        file, tasks = tmp_path / "loadavg", tmp_path / "task"
        file.write_text(text)
        for number, state in enumerate("R" * own + "SS"):
            (tasks / str(number)).mkdir(parents=True, exist_ok=True)
            (tasks / str(number) / "stat").write_text(f"{number} (a (b) c) {state} 1 1 0")
        monkeypatch.setattr(threads, "RUNNING", file)
        monkeypatch.setattr(threads, "OWN", tasks)

    return write


@pytest.fixture(autouse=True)
def four_threads(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def used(multiplications, device=CPU):
    with limited_threads(multiplications, device):
        return torch.get_num_threads()


def test_a_small_problem_takes_one_thread(running):
    running("0.0 0.0 0.0 1/80 5")
    assert used(SMALL - 1) == 1
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("others", "expected"), [(0, 4), (1, 3), (3, 1), (9, 1)])
def test_a_large_one_takes_what_is_free(others, expected, running):
    running(f"0.0 0.0 0.0 {1 + others}/80 5")
    assert used(SMALL) == expected
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("others", "expected"), [(0, 4), (1, 3)])
def test_own_threads_that_wait_for_work_take_no_core(others, expected, running):
    running(f"0.0 0.0 0.0 {3 + others}/80 5", own=3)
    assert used(SMALL) == expected


def test_short_work_looks_once_for_free_cores(running, monkeypatch):
    running("0.0 0.0 0.0 9/80 5")
    looks = []
    monkeypatch.setattr(threads.time, "sleep", looks.append)
    assert used(SMALL) == 1
    assert not looks
    with limited_threads(threads.LONG, CPU):
        assert looks == [threads.PAUSE] * (threads.LOOKS - 1)


def test_long_work_looks_again(running, monkeypatch):
    """A neighbour that has come or gone since changes the number of threads."""
    running("0.0 0.0 0.0 4/80 5")
    take_free_cores()
    assert torch.get_num_threads() == 4  # outside of any work
    with limited_threads(SMALL, CPU):
        assert torch.get_num_threads() == 1
        running("0.0 0.0 0.0 1/80 5")
        take_free_cores()
        assert torch.get_num_threads() == 1  # it has just looked
        monkeypatch.setattr(threads, "AGAIN", 0.0)
        take_free_cores()
        assert torch.get_num_threads() == 4
        running("0.0 0.0 0.0 3/80 5")
        take_free_cores()
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 4


def test_it_takes_no_more_than_torch_had(running, monkeypatch):
    torch.set_num_threads(2)
    running("0.0 0.0 0.0 1/80 5")
    monkeypatch.setattr(threads, "AGAIN", 0.0)
    with limited_threads(SMALL, CPU):
        assert torch.get_num_threads() == 2
        take_free_cores()
        assert torch.get_num_threads() == 2


def test_a_gpu_keeps_them(running):
    running("0.0 0.0 0.0 9/80 5")
    assert used(1, torch.device("cuda")) == 4


@pytest.mark.parametrize("text", ["", "nothing", "0.0 0.0 0.0 x/80 5"])
def test_a_system_that_does_not_tell_has_all_cores(text, running):
    running(text)
    assert free_cores() == 4


def test_an_error_puts_them_back(running):
    running("0.0 0.0 0.0 1/80 5")
    with pytest.raises(ValueError, match="broken"), limited_threads(1, CPU):
        raise ValueError("broken")
    assert torch.get_num_threads() == 4


def test_a_use_inside_of_another_changes_nothing(running):
    running("0.0 0.0 0.0 1/80 5")
    with limited_threads(1, CPU):
        assert used(SMALL) == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4


def test_threads_do_not_limit_each_other(running):
    """A thread begins with the number that another one has set, and keeps it by itself."""
    running("0.0 0.0 0.0 1/80 5")
    seen = []

    def work():
        seen.extend([used(1), used(SMALL), used(1), torch.get_num_threads()])

    with limited_threads(1, CPU):
        other = Thread(target=work)
        other.start()
        other.join()
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4
    assert seen == [1, 4, 1, 4]


def test_a_thread_that_began_with_one_thread_does_not_pass_it_on(running):
    running("0.0 0.0 0.0 1/80 5")
    began, left = Event(), Event()
    seen = []

    def work():
        torch.get_num_threads()  # what the main thread has set for itself
        began.set()
        left.wait()
        seen.append(used(SMALL))

    other = Thread(target=work)
    with limited_threads(1, CPU):
        other.start()
        began.wait()
    left.set()
    other.join()
    assert seen == [4]
    assert used(SMALL) == 4


def test_small_work_stays_on_one_thread(running, monkeypatch):
    running("0.0 0.0 0.0 1/80 5")
    monkeypatch.setattr(threads, "AGAIN", 0.0)
    with limited_threads(1, CPU):
        take_free_cores()
        assert torch.get_num_threads() == 1


def test_an_interrupt_while_looking_leaves_nothing_behind(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "free_cores", interrupted)
    with pytest.raises(KeyboardInterrupt), limited_threads(SMALL, CPU):
        pass
    monkeypatch.undo()
    with limited_threads(1, CPU):
        assert torch.get_num_threads() == 1
