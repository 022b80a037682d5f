"""The nightly tests: slices of at most twelve minutes, of which CI plays one beside the gate.

make nightly                    # all slices
make nightly SLICE=slurm        # one
make nightly SLICE=touched      # the one that the last change asks for, as CI does
"""
