"""What lets scripts written for Horovod run unchanged: ``site`` holds a real package named ``horovod``.

``farandole run --horovod`` puts ``site`` first on the workers' ``PYTHONPATH``, so that it reaches their child processes
too; it is importable nowhere else.
"""
