"""Differential fuzzer for JAX and Keras: programs as plain data, and one oracle in NumPy for both.

    python -m workbench.differential --framework jax --programs 2000 --seed 1
    KERAS_BACKEND=tensorflow python -m workbench.differential --framework keras --seed 1 --only 17

``jax_plans`` and ``keras_plans`` make a plan from a seed; ``oracle`` executes it for all ranks in this process, in
float64, without any framework; ``ranks`` executes many plans, one after the other, on the ranks of one job, by
``on_jax`` or ``on_keras``; ``judgement`` compares; ``fuzzing`` repeats, shrinks and reports.
"""
