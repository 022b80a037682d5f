"""A package named ``horovod``, in ``site``, and the command ``horovodrun``, in ``bin``: Horovod scripts run unchanged.

The package is importable only on request: in the workers of ``farandole run --horovod`` and their children, with the
variable ``FARANDOLE_HOROVOD``, and after ``farandole horovod install`` (``launch/hosts/horovod_site.py``).
"""
