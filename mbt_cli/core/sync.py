"""Flushing files to the disk."""

import errno
import os

_UNSUPPORTED = {errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS}


def sync(descriptor: int) -> None:
    """Wait until an open file or folder is on the disk, if its file system supports that.

    Some network file systems cannot sync a folder, or anything; the data is written all the same.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
