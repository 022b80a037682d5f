"""Floor 0: the native core, as C++ in the repository's ``native/`` has it: the module ``core``."""
