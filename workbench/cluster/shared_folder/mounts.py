"""FUSE mounts in this mount namespace or in a host's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from workbench.cluster.namespaces import NEW_MOUNTS, call

_CLONE_FS = 0x200
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_KIND = b"fuse.shared_folder"
_OPTIONS = "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"


def mount(device: int, folder: str, namespace: str) -> None:
    """Mount what will be served on ``device``, in a mount namespace (``/proc/PID/ns/mnt``) or in this one (``""``)."""
    words = (b"shared_folder", os.fsencode(folder), _KIND, _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    _inside(namespace, lambda: call("mount", *words, _OPTIONS.format(device).encode()))


def unmount(folder: str, namespace: str) -> None:
    """Unmount, even if it is in use; does nothing if nothing is mounted, or the host no longer exists."""
    with suppress(OSError):
        _inside(namespace, lambda: call("umount2", os.fsencode(folder), _MNT_DETACH | _UMOUNT_NOFOLLOW))


def _inside(namespace: str, act: Callable[[], None]) -> None:
    """Act in a thread of its own, which can enter a namespace for good once it shares no directories with others."""
    raised: list[OSError] = []

    def run() -> None:
        try:
            if namespace:
                descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    call("unshare", _CLONE_FS)
                    call("setns", descriptor, NEW_MOUNTS)
                finally:
                    os.close(descriptor)
            act()
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in raised:
        raise error
