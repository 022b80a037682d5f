"""``horovod.ray``: workers that Ray lends, and that make one call after another."""

from __future__ import annotations

from horovod.ray.runner import ElasticRayExecutor, MiniSettings, RayExecutor

__all__ = ["ElasticRayExecutor", "MiniSettings", "RayExecutor"]
