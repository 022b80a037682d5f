"""The calls of Cray's plugin on tensors of TensorFlow: eager, in functions, in sessions of TensorFlow 1; and PyTorch's.

The session is as CosmoFlow has it: new values from ``broadcast``, assigned to the variables; gradients in between.
"""

from __future__ import annotations

from tests.support.frameworks import lean
from tests.support.launching import Launch

SCRIPT = """
    import ml_comm as mc
    import numpy as np
    import tensorflow as tf

    mc.init_mpi()
    mc.init(2, 1, 100, "tensorflow")
    rank = mc.get_rank()

    def drawn():
        return [tf.fill((2, 3), rank + 1.0), tf.constant([4.0 * rank])]

    def right(found):
        assert found[0].shape == (2, 3) and found[1].shape == (1,), found
        assert np.array_equal(found[0], np.full((2, 3), 1.5)) and np.array_equal(found[1], [2.0]), found

    right(mc.gradients(drawn(), 0))
    right(mc.gradients((each for each in drawn()), 0))
    right(tf.function(lambda: mc.gradients(drawn(), 0))())
    assert mc.check_buffers_match([tf.Variable([1.0, 2.0])], 0) == 0
    new = mc.broadcast([tf.Variable([float(rank)])], 1)
    assert new[0].numpy().tolist() == [1.0]

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=tf.constant([1.0 + rank, 2.0]))
        begun = tf.group(*[v1.assign(weight, value) for value in mc.broadcast([weight], 0)])
        loss = tf.reduce_sum(weight * (rank + 1.0))
        gradients = mc.gradients(v1.gradients(loss, [weight]), 0)
        stepped = v1.train.GradientDescentOptimizer(0.1).apply_gradients(zip(gradients, [weight]))
        session.run(v1.global_variables_initializer())
        session.run(begun)
        for _ in range(2):
            session.run(stepped)
        np.testing.assert_allclose(session.run(weight), [1.0 - 0.3, 2.0 - 0.3], rtol=1e-6)
    mc.finalize()
    print("done")
"""

OF_TORCH = """
    import farandole.compat.ml_comm as mc
    import torch

    mc.init(1, 1, 10, "torch")
    parameter = torch.nn.Parameter(torch.full((2, 2), mc.get_rank() + 1.0))
    assert mc.broadcast([parameter], 1)[0].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    mc.config_team(0, 0, 1, 3)
    found = [mc.gradients([parameter + step], 0)[0].unique().tolist() for step in range(3)]
    assert found == [[1.5], [0.0], [2.5]], found
    try:
        mc.gradients([torch.ones(2, dtype=torch.bfloat16)], 0)
    except Exception as error:
        assert "bfloat16" in str(error), error
    mc.finalize()
    print("done")
"""


def test_tensors_of_tensorflow(launch: Launch) -> None:
    done = launch(2, SCRIPT, options=["--cray"], environment={"TF_CPP_MIN_LOG_LEVEL": "3", **lean("tensorflow")}).ok()
    assert done.lines() == ["done", "done"]


def test_tensors_of_pytorch(launch: Launch) -> None:
    assert launch(2, OF_TORCH).ok().lines() == ["done", "done"]
