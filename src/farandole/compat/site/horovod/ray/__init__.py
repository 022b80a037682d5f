"""``horovod.ray``: workers in Ray bundles that run one call after another."""

from __future__ import annotations

from horovod.ray.runner import ElasticRayExecutor, MiniSettings, RayExecutor

__all__ = ["ElasticRayExecutor", "MiniSettings", "RayExecutor"]
