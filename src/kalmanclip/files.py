"""Files that are either complete or absent: atomic writing, and reading with messages that help.

A run that is killed in the middle of a save must leave the previous file, not half of a new one. Everything
here raises the `error_class` its caller chooses (an adapter's files fail with `AdapterError`, a data set's
with `DataError`).
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kalmanclip.errors import KalmanClipError

_CHUNK = 1 << 20  # bytes read at a time when hashing
_TEMPORARY = ".tmp-"

# What to do about the errors people meet; any other is reported in the system's own words.
_ADVICE = {
    errno.ENOENT: "check the spelling and that its folder exists",
    errno.EACCES: "change its permissions or those of its folder, or choose another place",
    errno.EPERM: "change its permissions or those of its folder, or choose another place",
    errno.EROFS: "the disk is read-only; choose another place",
    errno.ENOSPC: "free some space on the disk and try again",
    errno.EISDIR: "this is a folder; give the path of a file",
    errno.ENOTDIR: "a part of this path is a file, not a folder; check the spelling",
}


def _explain(action: str, path: str | os.PathLike[str], error: OSError) -> str:
    """Return one line: what could not be done to which file, why, and what to do."""
    reason = error.strerror or str(error) or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "check the path and the disk")
    return f"cannot {action} {os.fspath(path)}: {reason} ({advice})"


def _sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut, on systems where folders can be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _usual_mode(path: Path) -> int:
    """Return the mode of a new file at `path`. Some writers (safetensors) choose one that shuts out everybody else."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    path.unlink()
    return mode


@contextmanager
def atomic_path(path: str | os.PathLike[str], error_class: type[KalmanClipError] = KalmanClipError) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes `path` when the block ends without an error.

    The temporary file lies in the same folder (a rename is atomic only within one file system), is hidden,
    and keeps the suffix, from which picture writers choose their format. If the block raises, the temporary
    file is removed and whatever `path` held before is untouched. With several writers at once the last to
    finish wins, and readers always see one writer's complete file. A symbolic link is written through; an
    existing file's mode is kept.

    Args:
        path: the file to make or replace; its folder must exist.
        error_class: raised, naming `path`, when the file system refuses.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}{target.suffix}")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        mode = _usual_mode(temporary) if not target.exists() else None
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        elif mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        # The block may have failed on some other file: that is not ours to reword.
        if error.filename is not None and str(error.filename) not in (str(temporary), str(target)):
            raise
        raise error_class(_explain("write", path, error)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_abandoned(folder: Path, seconds: float = 3600.0) -> None:
    """Remove the temporary files that killed writers left in `folder`.

    Args:
        folder: it need not exist, nor be writable.
        seconds: younger files stay, since their writers may be at work.
    """
    for path in folder.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):  # somebody else may remove it, too
            if time.time() - path.stat().st_mtime > seconds:
                path.unlink()


def write_atomic(
    path: str | os.PathLike[str],
    data: bytes | str,
    error_class: type[KalmanClipError] = KalmanClipError,
) -> None:
    """Write `data` (text as UTF-8, line ends as given) to `path`, completely or not at all."""
    with atomic_path(path, error_class) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def write_json_atomic(
    path: str | os.PathLike[str], value: Any, error_class: type[KalmanClipError] = KalmanClipError
) -> None:
    """Write `value` as indented, strict JSON (NaN and infinity are refused), completely or not at all."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise error_class(
            f"cannot write {os.fspath(path)}: {error} "
            "(use plain dicts, lists, strings, numbers and None; None instead of NaN)"
        ) from error
    write_atomic(path, text + "\n", error_class)


def read_json(path: str | os.PathLike[str], error_class: type[KalmanClipError] = KalmanClipError) -> Any:
    """Return what the JSON file `path` holds; a missing, unreadable or damaged file raises `error_class`."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise error_class(_explain("read", path, error)) from error
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are both ValueErrors
        raise error_class(
            f"cannot read {os.fspath(path)}: it is not valid JSON: {error} "
            "(the file is damaged or was edited by hand; restore it or make it again)"
        ) from error


def sha256_of(path: str | os.PathLike[str], error_class: type[KalmanClipError] = KalmanClipError) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits, reading it in pieces."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as stream:
            while piece := stream.read(_CHUNK):
                digest.update(piece)
    except OSError as error:
        raise error_class(_explain("read", path, error)) from error
    return digest.hexdigest()
