from __future__ import annotations

import threading

import pytest
import torch

from vitscope.analyses.kpca.threads import over_images


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("images", [1, 7, 40])
def test_chunks_come_back_in_order(images, two_threads):
    x = torch.arange(images * 6.0).reshape(images, 3, 2, 1)
    y = torch.arange(images)
    found = over_images(lambda a, b: {"sum": a.sum((1, 2, 3)) + b, "same": a}, x, y)
    assert torch.equal(found["sum"], x.sum((1, 2, 3)) + y)
    assert torch.equal(found["same"], x)


def test_work_runs_on_as_many_threads_as_torch_may_use_each_with_one_of_its_own(two_threads):
    both = threading.Barrier(2, timeout=20)
    seen = set()

    def work(x):
        if len(seen) < 2:
            both.wait()  # passes only if two threads are here at once
        seen.add(threading.get_ident())
        assert torch.get_num_threads() == 1
        assert not torch.is_grad_enabled()
        return {"x": x}

    over_images(work, torch.zeros(2, 12, 60, 1))  # large enough to be shared
    assert len(seen) == 2
    assert torch.get_num_threads() == 2


def test_the_number_of_threads_is_the_same_after_an_error(two_threads):
    def fail(x):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        over_images(fail, torch.zeros(4, 1, 1, 1))
    assert torch.get_num_threads() == 2


def test_threads_that_begin_later_have_the_number_that_was_set(two_threads):
    over_images(lambda x: {"x": x}, torch.zeros(4, 1, 1, 1))
    seen = []
    later = threading.Thread(target=lambda: seen.append((torch.ones(1).sum(), torch.get_num_threads())[1]))
    later.start()
    later.join()
    assert seen == [2]
