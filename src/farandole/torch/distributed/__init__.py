"""Farandole as a backend of ``torch.distributed``, and so of DDP, FSDP2, DTensor, DeepSpeed.

import torch.distributed as dist
dist.init_process_group("farandole")        # without an import of Farandole: see ``farandole.torch_backend``
"""
