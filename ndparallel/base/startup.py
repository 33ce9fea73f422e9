"""What has to be said before numpy is imported: one BLAS thread a GPU; that Ctrl-C ends a lesson or a command
quietly while it is still being imported, as it does later on; what to do where nothing was installed; how
often Python looks for garbage; and what becomes of memory that is freed.

Limit  Python's own start, a few hundredths of a second, comes before this. A numpy that has been imported
       already keeps its threads: ndparallel/engines/launch.py says so.
"""

import ctypes
import gc
import os
import sys
from contextlib import suppress
from fnmatch import fnmatch
from types import TracebackType

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
INTERRUPTED = 130  # the exit code of what Ctrl-C has ended
PROGRAMS = ("ndparallel", "[0-9a-z][dp]_*.py", "gpu.py", "collectives.py")
REQUIRED = ("numpy", "rich")
COLLECT_AFTER = 100_000  # objects; Python's default is 700 or 2,000: imports make 50,000, and no garbage
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc, malloc/malloc.h
numpy_came_first = "numpy" in sys.modules and not any(name in os.environ for name in THREADS)


def is_ours(words: list[str]) -> bool:
    """Whether a command line runs one of this project's programs, and no program of a reader's."""
    return any(fnmatch(os.path.basename(word), program) for word in words[1:] for program in PROGRAMS)


def end_quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's `sys.excepthook`, but for Ctrl-C and for a package that is missing."""
    if issubclass(kind, KeyboardInterrupt):
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(INTERRUPTED)
    missing = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in REQUIRED:
        sys.exit(f"error: {missing} is not installed; `pip install -e .` installs all that is needed.")
    sys.__excepthook__(kind, error, trace)


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, as torch does on a GPU. Otherwise large arrays may come from the kernel,
    page by page, and what ran before decides whether they do (docs/calibration.md)."""
    if mallopt := sys.platform == "linux" and getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


for name in THREADS:
    os.environ.setdefault(name, "1")
if is_ours(sys.orig_argv):
    sys.excepthook = end_quietly
    gc.set_threshold(COLLECT_AFTER)
    keep_freed_memory()
