"""Keras, JAX and TensorFlow: training steps, calls inside of graphs, copies and lost workers."""
