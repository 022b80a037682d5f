"""Search for hyper-parameters on a pool of warm workers: ``farandole.search``."""
