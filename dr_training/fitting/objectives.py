"""Losses of photographs, one by one, so that every device counts each of them once."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dr_training.fitting.plan import BALANCED, FOCAL, ORDINAL, TrainingPlan
from inference_image.contract import GRADE_LABELS, REFERABLE_FROM_GRADE, TASK_REFERABLE

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def photograph_loss(plan: TrainingPlan) -> Loss:
    """A function of logits (n, 5) or (n, 1) and grades (n,) that gives losses (n,)."""
    if plan.task == TASK_REFERABLE:
        return lambda logits, grades: _referral(logits, grades, plan)
    return lambda logits, grades: _grading(logits, grades, plan)


def class_weights(plan: TrainingPlan, grades: NDArray[np.int64]) -> NDArray[np.float32]:
    """(5,) weight of a photograph by its grade; their mean over the training part is 1.

    `balanced` gives each class that occurs the same total.
    """
    classes = grades
    if plan.task == TASK_REFERABLE:
        classes = (grades >= REFERABLE_FROM_GRADE).astype(np.int64)
    counts = np.bincount(classes, minlength=len(GRADE_LABELS)).astype(np.float64)
    weights = np.ones(len(GRADE_LABELS))
    if plan.class_weights == BALANCED:
        present = counts > 0
        weights[present] = counts.sum() / (present.sum() * counts[present])
    if plan.task == TASK_REFERABLE:
        weights = weights[(np.arange(len(GRADE_LABELS)) >= REFERABLE_FROM_GRADE).astype(int)]
    return weights.astype(np.float32)


def _grading(logits: tf.Tensor, grades: tf.Tensor, plan: TrainingPlan) -> tf.Tensor:
    logs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    right = tf.gather(logs, grades, axis=1, batch_dims=1)
    if plan.loss == FOCAL:
        # 1 - p of a certain answer may be a rounding error below 0.
        return -(tf.maximum(1 - tf.exp(right), 0.0) ** plan.focal_gamma) * right
    if plan.loss == ORDINAL:
        wanted = tf.one_hot(grades, logits.shape[-1])
        gap = tf.cumsum(tf.exp(logs) - wanted, axis=1)
        return tf.reduce_sum(tf.square(gap), axis=1) - right
    return -right


def _referral(logits: tf.Tensor, grades: tf.Tensor, plan: TrainingPlan) -> tf.Tensor:
    positive = tf.cast(grades >= REFERABLE_FROM_GRADE, tf.float32)
    value = tf.cast(logits[:, 0], tf.float32)
    loss = tf.nn.sigmoid_cross_entropy_with_logits(positive, value)
    if plan.loss == FOCAL:
        return tf.maximum(1 - tf.exp(-loss), 0.0) ** plan.focal_gamma * loss
    return loss
