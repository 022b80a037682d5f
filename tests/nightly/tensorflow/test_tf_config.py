"""TensorFlow's own distribution under ``farandole run --tf-config``, as TensorFlow's tutorial for it begins."""

from __future__ import annotations

from tests.support.frameworks import lean
from tests.support.launching import Launch

SCRIPT = """
    import json, os
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 2
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    assert index == int(os.environ["RANK"])

    def total():
        value = tf.constant(index + 1.0)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

    assert strategy.run(tf.function(total)).numpy() == 3.0
    print("met")
"""


def test_workers_of_a_strategy_meet(launch: Launch) -> None:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **lean("tensorflow")}
    assert launch(2, SCRIPT, options=["--tf-config"], environment=environment).ok().lines() == ["met", "met"]
