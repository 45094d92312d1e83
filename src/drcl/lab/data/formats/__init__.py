"""File formats, some shared by several data sets: IDX, CIFAR's rows, .gnt, LEAF's JSON, plain arrays."""
