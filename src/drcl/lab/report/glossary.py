"""What the measures and words of a report mean, in one sentence each, shown when a reader points at them."""

from __future__ import annotations

WORDS = {
    "average_accuracy": "Mean test accuracy over all tasks after the last one was learned.",
    "backward_transfer": "How much the accuracy on earlier tasks changed between learning each of them and the end; "
    "negative means forgetting.",
    "forgetting": "How far the accuracy on earlier tasks fell from the best it ever was, mean over these tasks.",
    "incremental_accuracy": "Average incremental accuracy: the mean accuracy on the tasks learned so far, after each "
    "task, averaged over the whole sequence.",
    "learning_accuracy": "Mean accuracy on each task right after it was learned.",
    "unmoved": "Share of the shared weights that a task does not change by a single bit; mean from the second task on.",
    "directions_held": "Share of the directions of its layers that a task does not move. This method protects "
    "directions, which are combinations of weights, so single weights move. An L2 penalty pulls every direction back "
    "and holds almost none exactly.",
    "effective_stability": "Share of the weights that a task moves by less than 5 % of their size; mean from the "
    "second task on.",
    "stiffness": "How far a task moves all weights together (Euclidean length), mean from the second task on: the "
    "shorter, the stiffer.",
    "learning_seconds": "Seconds of training and consolidation over the whole sequence; evaluation is not counted.",
    "relative_time": "Time to learn, divided by that of plain SGD on the same benchmark.",
    "gradient_evaluations": "Batches for which a gradient was computed, training and consolidation together.",
    "state_bytes": "Memory that the method keeps between tasks, in addition to the network itself.",
}
