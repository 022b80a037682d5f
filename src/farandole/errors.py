"""Every error Farandole raises, in one tree.

    FarandoleError
    ├── UsageError (ValueError)            the call itself cannot be right
    │   ├── SettingsError                  an unknown or ill-typed knob
    │   ├── NotInitializedError            an operation before ``init()``
    │   ├── DuplicateNameError             the same name twice in flight on one rank
    │   └── UnsupportedError (NotImplementedError)
    │                                      a dtype, device or option that no engine serves
    ├── CollectiveError (RuntimeError)     a collective failed: alias ``HorovodInternalError``
    │   ├── MismatchError (ValueError)     ranks asked for different things; the next collective works
    │   ├── StallError                     some rank never came; the deadline has passed
    │   ├── AbortError                     the generation has ended: a worker died or left
    │   └── EngineError                    the bytes could not be moved
    ├── DivergenceError (RuntimeError)     ranks step with different numbers; all of them raise it
    ├── StartError (RuntimeError)          the job could not be formed in time
    ├── ControlError (RuntimeError)        the control plane refused or lost a peer
    ├── CheckpointError (RuntimeError)     a checkpoint could not be written, or the one asked for is not whole
    ├── DataError (RuntimeError)           a file of a data set is damaged, cannot be read, or has what no reader reads
    ├── ModelError (RuntimeError)          the folder of a model does not verify, or its weights are of another model
    └── RemoteError (RuntimeError)         the user's function raised on a worker

    HostsUpdatedInterrupt (BaseException)  no error: workers join or leave at this commit, and the state is safe

Texts say what was asked, what was found and what to type. Errors about another rank name the rank and its host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final


class FarandoleError(Exception):
    """Root of the tree; catch it to catch everything that Farandole itself raises."""

    if not TYPE_CHECKING:
        __init__ = Exception.__init__  # without it TensorFlow's AutoGraph would replace this error by one of its own


class UsageError(FarandoleError, ValueError):
    """The call cannot be right, whatever the other ranks do."""


@final
class SettingsError(UsageError):
    """An unknown knob, or a value that does not fit its type; the text lists the legal ones."""


@final
class NotInitializedError(UsageError):
    """An operation that needs a job was called before ``init()`` or after ``shutdown()``."""

    foreword: ClassVar[str] = ""
    """Sentence that users of a package with another name (``horovod``) search for; that package sets it."""

    def __init__(self, asked: str) -> None:
        super().__init__(f"{self.foreword}{asked} was called, but Farandole is not initialized: call init() first")


@final
class DuplicateNameError(UsageError):
    """A collective with this name is still in flight on this rank."""


@final
class UnsupportedError(UsageError, NotImplementedError):
    """A dtype, device, option or combination that no engine serves.

    Scripts written for Horovod expect a ``RuntimeError`` here, or a ``NotImplementedError``, or a ``ValueError``.
    """


class CollectiveError(FarandoleError, RuntimeError):
    """A collective failed. Horovod's name for it, ``HorovodInternalError``, is an alias."""


@final
class MismatchError(CollectiveError, ValueError):
    """Ranks requested different collectives under one name, or a collective that a rank's tensor does not allow.

    All members raise it, and the next collective works; except after a deadlock, which ends the generation.
    """


@final
class StallError(CollectiveError):
    """A rank did not begin a collective before the deadline (``stall_shutdown_s``)."""


@final
class AbortError(CollectiveError):
    """The generation ended while, or before, this collective ran; the text names the cause and the rank."""


@final
class EngineError(CollectiveError):
    """An engine could not move the bytes (a lost connection, no memory)."""


@final
class DivergenceError(FarandoleError, RuntimeError):
    """Ranks step with different numbers; the text names the tensor, the step and two of the ranks.

    No ``CollectiveError``: an elastic job that returns to its last commit could not know whether that is correct.
    """


@final
class StartError(FarandoleError, RuntimeError):
    """The job could not be formed; the text names the missing ranks."""


@final
class ControlError(FarandoleError, RuntimeError):
    """The control plane refused a peer or lost one."""


@final
class CheckpointError(FarandoleError, RuntimeError):
    """A checkpoint could not be written, or the requested one is incomplete; the text says where and why."""


@final
class DataError(FarandoleError, RuntimeError):
    """A file of a data set is damaged, unreadable, or has content that no reader supports; the text names it."""

    is_outage = False
    """True if a process or a disk of the staging failed, or a server, and the file may be whole."""


@final
class ModelError(FarandoleError, RuntimeError):
    """The folder of a model does not verify, or its weights belong to another model; the text says which part."""


@final
class RemoteError(FarandoleError, RuntimeError):
    """The function given to ``run`` raised on a worker; the text holds rank, host and the remote traceback."""

    def __init__(self, rank: int, host: str, summary: str, traceback: str) -> None:
        self.rank, self.host, self.summary, self.traceback = rank, host, summary, traceback
        super().__init__(f"rank {rank} on {host} raised {summary}\n\n{traceback}")

    def __reduce__(self) -> tuple[type[RemoteError], tuple[int, str, str, str]]:
        return RemoteError, (self.rank, self.host, self.summary, self.traceback)


@final
class HostsUpdatedInterrupt(BaseException):
    """Raised by ``State.commit`` when workers will join or leave; ``elastic.run`` catches it and re-forms the job.

    No ``Exception``, so that no ``except Exception`` of a training script can swallow it. ``skip_sync`` is always
    false: ranks synchronize the state after every change.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        self.skip_sync = skip_sync
        super().__init__("workers join or leave at this commit")


HorovodInternalError = CollectiveError
