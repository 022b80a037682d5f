"""A whole elastic job without processes: what its pure parts decide, under every order of messages and faults.

    from workbench.elastic.search import search             # every interleaving of a small job
    from workbench.elastic.simulation import simulate       # one random schedule of a larger one, by its seed

What decides is the product's own code: ``Membership``, ``count``, ``agree``, and the sampler's batches.
"""
