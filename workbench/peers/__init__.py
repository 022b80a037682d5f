"""Model of the whole negotiated lane, without processes, under every order of messages, threads and ends.

    from workbench.peers.search import search               # every interleaving of a small job
    from workbench.peers.simulation import simulate         # one random schedule of a larger one, by its seed

Decisions are made by the product's own code: ``PeerProtocol``, ``Submissions``, ``offer`` and ``Negotiation``.
"""
