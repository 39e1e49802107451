"""Choosing an instruction set, which does not change the kernels' results."""

import numpy as np
import pytest
from hypothesis import given

from gluon_gc import kernels

from . import arrays
from .bindings import framed


def test_the_scalar_version_is_always_there():
    assert kernels.isas()[0] == "scalar"


def test_an_instruction_set_that_this_machine_lacks_is_refused_by_name():
    for isa in "mmx", "cuda":  # only codecs run on "cuda"
        with pytest.raises(ValueError, match=f"isa must be one of .*'scalar'.*, got '{isa}'"):
            framed(np.zeros(1, np.uint32), isa=isa)


@given(arrays.sizes, arrays.isas, arrays.threads, arrays.offsets)
def test_the_limit_loops_touch_every_element_once_and_nothing_else(size, isa, threads, offset):
    guarded = arrays.Guarded(offset)
    a, b, c = (guarded.copy(np.full(size, value, np.float32)) for value in (1, 2, 3))
    two = guarded.copy(np.full(2 * size, 2, np.float32))  # and room for the sum
    three = guarded.copy(np.full(2 * size, 3, np.float32))
    halves = guarded.empty(size, np.uint16)

    total = guarded.empty(1, np.float32)

    def run(name, *loops_arrays):
        addresses = [x.ctypes.data for x in loops_arrays] + [None, None]
        settings = size, threads, kernels.isas().index(isa)
        return kernels.library.gluon_gc_limit(name.encode(), *addresses[:3], *settings)

    run("add", two, a)
    assert (two[:size] == 2).all() and (two[size:] == 3).all()
    run("add_constant", a)  # a = 2
    run("add_twice", two, three, a)
    assert (two[:size] == 2).all() and (two[size:] == 4).all()
    assert (three[:size] == 3).all() and (three[size:] == 5).all()
    assert (a == 2).all()
    run("sum", b, total)
    assert total[0] == 2 * size
    run("copy", c, a)
    run("fill", c)
    run("narrow", b, halves)
    b[:] = 0
    run("widen", halves, b)
    assert (a == 3).all() and (c == 1).all() and (b == 2).all()
    assert run("jump", a) == b"there is no such loop"
    guarded.check()
