"""One step: how a proposal comes about (plasticity), what the anchor lets through (stability), and fast kernels.

The way of one step:

    DRCL.step                   drcl.optimizer
    -> splitting/plasticity     how x comes about: SGD, several steps, a wrapped optimizer, an inner solve
    -> splitting/stability      what becomes of it: strength, single weights or directions
    -> splitting/kernels        the arithmetic on tensors: native (step.c), foreach, compile, reference
       splitting/directions     the same for layers with an eigenbasis (drcl.directions)

The end of a task is in `drcl.consolidation`, what is saved in `drcl.state` and `drcl.anchor`.
"""
