"""Entry point of PyTorch, which calls ``register`` at ``import torch``: the backend ``farandole`` is known by name.

    torch.distributed.init_process_group("farandole")

Nothing else of Farandole is imported before a group is made.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Tell ``torch.distributed`` how groups of this backend are made, if this PyTorch has that package."""
    import torch.distributed

    dist: Any = torch.distributed
    if dist.is_available() and "FARANDOLE" not in dist.Backend._plugins:
        # Of GPUs, too: what the engine does not serve there travels by way of the host, or by another backend.
        dist.Backend.register_backend("farandole", _group, extended_api=True, devices=["cpu", "cuda"])
        dist.register_rendezvous_handler("farandole", _rendezvous)


def _rendezvous(url: str, **options: Any) -> Any:
    from farandole.torch.distributed.rendezvous import meet

    return meet(url, **options)


def _group(options: Any, _: Any) -> Any:
    from farandole.torch.distributed.starting import start_group

    return start_group(options)
