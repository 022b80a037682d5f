"""Functions on workers that other systems' clusters (Ray, Dask, Spark) lend."""
