"""A whole elastic job without processes: the decisions of its pure parts, under every order of messages and faults.

    from workbench.elastic.search import search             # every interleaving of a small job
    from workbench.elastic.simulation import simulate       # one random schedule of a larger one, by its seed

The decisions are made by the product's own code: ``Membership``, ``count``, ``agree``, and the sampler's batches.
"""
