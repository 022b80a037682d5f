"""Parts of Horovod's launcher that scripts and tests import."""
