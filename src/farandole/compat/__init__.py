"""A real package named ``horovod``, in ``site``, and the command ``horovodrun``, in ``bin``: scripts run unchanged.

It is importable only where somebody has said so: in the workers of ``farandole run --horovod`` and what they start, by
the variable ``FARANDOLE_HOROVOD``, and after ``farandole horovod install`` (``launch/hosts/horovod_site.py``).
"""
