"""One step: the proposal (plasticity), what the anchor lets through (stability), and fast kernels.

The path of one step:

    DRCL.step                   drcl.optimizer
    -> splitting/plasticity     computes x: by SGD, several steps, a wrapped optimizer, or an inner solve
    -> splitting/stability      computes z: strength, single weights or directions
    -> splitting/kernels        the arithmetic on tensors: native (step.c), foreach, compile, reference
       splitting/directions     the same for layers with an eigenbasis (drcl.directions)

The end of a task is in `drcl.consolidation`, saving in `drcl.state` and `drcl.anchor`.
"""
