"""The run of the referral study: a network that tells referable DR (grade ≥ 2) from none.

As published: batches of prepared records, per-epoch metrics, a learning rate that falls when
the loss on the test part no longer does, and the best weights kept. On one device or mirrored
over several (`tf.distribute.MirroredStrategy`), where each gets its share of the global batch.
On a machine without GPUs the mirrored devices are two logical ones of the processor: that shows
that the strategy works, not that it is faster.
"""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dr_training.data.pipeline import Augmentation, Part, TrainingData
from dr_training.evaluate import auc
from dr_training.study.worker.record import Record
from dr_training.study.worker.trainers import UnavailableError

_REFERABLE_FROM = 2
_DROP = 0.5
_NETWORKS = {"InceptionV3": "InceptionV3", "MobileNet": "MobileNet"}
BEST = "best.weights.h5"


def train(spec: dict[str, Any], record: Record, out: Path) -> None:
    """Train as `spec` says and note times, losses and AUCs in `record`."""
    chosen = spec["parameters"]
    keras.utils.set_random_seed(spec["seed"])
    tf.config.threading.set_intra_op_parallelism_threads(spec["environment"]["threads"])
    strategy = make_strategy(chosen["strategy"], device=spec["environment"]["device"])
    record.mark("imported")
    data = TrainingData.open(Path(spec["records"]))
    training, test = data.part("train"), data.part("test")
    record.mark("data_ready")
    with strategy.scope():
        model = _build(chosen["network"], chosen["size"])
        optimizer = keras.optimizers.Adam(chosen["learning_rate"])
        optimizer.build(model.trainable_variables)
    step, answer = _functions(strategy, model, optimizer, chosen["batch"])
    record.mark("built")
    record.set(
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        train_images=len(training),
        test_images=len(test),
        parameters=model.count_params(),
        replicas=strategy.num_replicas_in_sync,
    )
    best, since, rate = np.inf, 0, float(chosen["learning_rate"])
    for epoch in range(chosen["epochs"]):
        with record.epoch() as noted:
            noted["loss"] = _epoch(strategy, step, training, spec, epoch)
        scores, truth = _scores(answer, test, chosen["batch"])
        loss = _cross_entropy(scores, truth)
        noted["accuracy"] = float(((scores >= 0.5) == truth).mean())
        area = auc(truth, scores)
        noted.update(test_loss=loss, auc=None if np.isnan(area) else area)
        if loss < best:
            best, since = loss, 0
            model.save_weights(out / BEST)
        else:
            since += 1
            if since % spec["drop_rate_after"] == 0:
                rate *= _DROP
                # One copy for each replica: set where the strategy can reach them all.
                with strategy.scope():
                    optimizer.learning_rate.assign(rate)
        noted["learning_rate"] = rate
        record.save()


def make_strategy(name: str, *, device: str) -> Any:
    """`one device`, `mirrored 2` or `mirrored all`; before TensorFlow has used a device."""
    gpus = tf.config.list_physical_devices("GPU")
    if device == "gpu" and not gpus:
        raise UnavailableError(f"tensorflow {tf.__version__} sees no GPU")
    if name == "one device":
        return tf.distribute.OneDeviceStrategy("/GPU:0" if device == "gpu" else "/CPU:0")
    wanted = len(gpus) if name == "mirrored all" and device == "gpu" else 2
    if device == "gpu":
        if len(gpus) < wanted or wanted < 2:
            raise UnavailableError(f"{name!r} needs at least two GPUs; there are {len(gpus)}")
        return tf.distribute.MirroredStrategy([f"/GPU:{n}" for n in range(wanted)])
    processor = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * wanted
    tf.config.set_logical_device_configuration(processor, logical)
    return tf.distribute.MirroredStrategy([f"/CPU:{n}" for n in range(wanted)])


def _build(name: str, size_px: int) -> Any:
    pixels = keras.Input((size_px, size_px, 3))
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    construct = getattr(keras.applications, _NETWORKS[name])
    backbone = construct(input_tensor=scaled, include_top=False, weights=None)
    pooled = keras.layers.GlobalAveragePooling2D()(backbone.output)
    return keras.Model(pixels, keras.layers.Dense(1)(pooled))


def _functions(strategy: Any, model: Any, optimizer: Any, batch: int) -> tuple[Any, Any]:
    def one(pixels: Any, truth: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(tf.cast(pixels, tf.float32), training=True)[:, 0]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(truth, logits)
            # Over the global batch: the replicas' gradients are added up.
            loss = tf.reduce_sum(losses) / batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def step(pixels: Any, truth: Any) -> Any:
        losses = strategy.run(one, args=(pixels, truth))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def answer(pixels: Any) -> Any:
        return tf.sigmoid(model(tf.cast(pixels, tf.float32), training=False)[:, 0])

    return step, answer


def _epoch(strategy: Any, step: Any, part: Part, spec: dict[str, Any], epoch: int) -> float:
    """One pass in whole batches; each replica takes its slice of the batch."""
    replicas = strategy.num_replicas_in_sync
    size = min(spec["parameters"]["batch"], len(part)) // replicas * replicas
    losses = []
    batches = part.batches(
        size, augment=Augmentation(), seed=spec["seed"], epoch=epoch, drop_remainder=True
    )
    for batch in batches:
        truth = (batch.grades >= _REFERABLE_FROM).astype(np.float32)
        share = size // replicas

        def slice_of(values: Any, share: int = share) -> Any:
            def of(context: Any) -> Any:
                first = context.replica_id_in_sync_group * share
                return tf.constant(values[first : first + share])

            return strategy.experimental_distribute_values_from_function(of)

        losses.append(float(step(slice_of(batch.pixels), slice_of(truth))))
        if not np.isfinite(losses[-1]):
            raise FloatingPointError(f"the loss became {losses[-1]} at batch {len(losses)}")
    return float(np.mean(losses))


def _scores(answer: Any, part: Part, batch: int) -> tuple[Any, Any]:
    scores, truth = [], []
    for one in part.batches(batch):
        scores.append(answer(one.pixels).numpy())
        truth.append(one.grades >= _REFERABLE_FROM)
    return np.concatenate(scores), np.concatenate(truth)


def _cross_entropy(scores: Any, truth: Any) -> float:
    near = np.clip(np.where(truth, scores, 1 - scores), 1e-7, 1)
    return float(-np.log(near).mean())
