"""Functions on workers in slots of other systems' clusters (Ray, Dask, Spark)."""
