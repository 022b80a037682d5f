"""Floor 0: the native core, the module ``core``, built from the C++ in the repository's ``native/``."""
