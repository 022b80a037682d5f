"""Entry point for PyTorch, which calls ``register`` at ``import torch``, so that it knows the backend ``farandole``.

    torch.distributed.init_process_group("farandole")

No other module of Farandole is imported before a group is made.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register the backend with ``torch.distributed``, if this PyTorch has that package."""
    import torch.distributed

    dist: Any = torch.distributed
    if dist.is_available() and "FARANDOLE" not in dist.Backend._plugins:
        # For GPUs, too: tensors that the engine does not serve there are copied to the host, or use another backend.
        dist.Backend.register_backend("farandole", _group, extended_api=True, devices=["cpu", "cuda"])
        dist.register_rendezvous_handler("farandole", _rendezvous)


def _rendezvous(url: str, **options: Any) -> Any:
    from farandole.torch.distributed.starting import farandole_rendezvous

    return farandole_rendezvous(url, **options)


def _group(options: Any, _: Any) -> Any:
    from farandole.torch.distributed.starting import start_group

    return start_group(options)
