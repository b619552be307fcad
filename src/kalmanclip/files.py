"""Files that are either complete or absent: atomic writing, and reading with messages that help.

A run that is killed in the middle of a save must leave the previous file, not half of a new one; the same holds for
the files of a folder that belong together (`update_folder`). Everything here raises the `error_class` its caller
chooses (an adapter's files fail with `AdapterError`, a data set's with `DataError`).
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kalmanclip.errors import KalmanClipError

LOCK = ".lock"
"""The file by which writers of a folder wait for each other; it stays, and means nothing by itself."""

_PATIENCE = 600.0  # seconds to wait for another writer
_CHUNK = 1 << 20  # bytes read at a time when hashing
_SHOWN = 200  # characters of a path in a message
_DEEPEST = 100  # tables within tables in a file of JSON: deeper ones are nobody's options, and cost Python its stack
_TEMPORARY = ".tmp-"

# What to do about the errors people meet; any other is reported in the system's own words.
_ADVICE = {
    errno.ENOENT: "check the spelling and that its folder exists",
    errno.EACCES: "change its permissions or those of its folder, or choose another place",
    errno.EPERM: "change its permissions or those of its folder, or choose another place",
    errno.EROFS: "the disk is read-only; choose another place",
    errno.ENOSPC: "free some space on the disk and try again",
    errno.EDQUOT: "free some space on the disk and try again",
    errno.EFBIG: "a limit (ulimit -f) or the disk does not allow a file that large; choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EISDIR: "this is a folder; give the path of a file",
    errno.ENOTDIR: "a part of this path is a file, not a folder; check the spelling",
}


def explain(action: str, path: str | os.PathLike[str], error: OSError) -> str:
    """Return one line: what could not be done to which file, why, and what to do."""
    reason = error.strerror or str(error) or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "check the path and the disk")
    name = os.fspath(path)
    if len(name) > 2 * _SHOWN:
        name = f"{name[:_SHOWN]}... ({len(name)} characters)"
    return f"cannot {action} {name}: {reason} ({advice})"


def check_path(path: Any, error_class: type[KalmanClipError] = KalmanClipError) -> Path:
    """Return a path that can be looked at, whether or not anything is there.

    An empty one is refused: to ``pathlib`` it is the current folder, to whoever gave it a variable that was not set.

    Raises:
        error_class: it is empty, no path at all, too long, or lies where this user may not look.
    """
    if not isinstance(path, str | os.PathLike):
        raise error_class(f"a path is text or a pathlib.Path, not {type(path).__name__}; give one")
    if not os.fspath(path):
        raise error_class("the path is empty; give one, or . for the current folder")
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise error_class(explain("use", path, error)) from error
    except ValueError as error:
        raise error_class(f"{os.fspath(path)!r} is not a path: {error}; check the spelling") from error
    return Path(path)


def _sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut, on systems where folders can be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_file(path: Path) -> None:
    with path.open("rb+") as written:
        os.fsync(written.fileno())


def _replace(target: Path, temporary: Path, mode: int) -> None:
    """Rename a file; it gets the mode of the one that it replaces, or else ``mode``."""
    temporary.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else mode)
    temporary.replace(target)


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
        mode = _usual_mode(temporary)
        yield temporary
        _sync_file(temporary)
        _replace(target, temporary, mode)
        _sync_folder(target.parent)
    except OSError as error:
        # The block may have failed on some other file: that is not ours to reword.
        if error.filename is not None and str(error.filename) not in (str(temporary), str(target)):
            raise
        raise error_class(explain("write", path, error)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def lock_folder(folder: Path, error_class: type[KalmanClipError] = KalmanClipError) -> Iterator[None]:
    """Be the only one who changes an existing folder's files; within a thread, locks may be nested.

    The operating system unlocks it when the process ends, be it by ``kill -9``. Where the file system has no locks,
    nothing is locked.
    """
    lock = FileLock(folder / LOCK, is_singleton=True, timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout as error:
        raise error_class(
            f"cannot write to {folder}: another process has been writing there for {_PATIENCE:.0f} seconds "
            "(wait for it, or choose another place)"
        ) from error
    except NotImplementedError:
        yield
        return
    except OSError as error:
        raise error_class(explain("write to", folder, error)) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def update_folder(
    folder: str | os.PathLike[str],
    error_class: type[KalmanClipError] = KalmanClipError,
    last: str = "",
    obsolete: str = "",
) -> Iterator[Path]:
    """Yield an empty draft folder; when the block ends without an error, its files become files of `folder`.

    Writers take turns. Until all files are complete, nothing in `folder` changes; then they are renamed one by one.

    Args:
        folder: created if need be.
        error_class: raised, naming `folder`, when the file system refuses.
        last: the name of the file that is renamed last: whoever reads the others because of it finds them.
        obsolete: a pattern of names; files that match it and are not among the new ones are removed at the end.
    """
    folder = check_path(folder, error_class)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise error_class(explain("create", folder, error)) from error
    with lock_folder(folder, error_class):
        remove_abandoned(folder)
        draft: Path | None = None
        try:
            draft = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder))
            mode = _usual_mode(draft / LOCK)
            yield draft
            files = sorted(draft.iterdir(), key=lambda file: file.name == last)
            for file in files:
                _sync_file(file)
            for file in files:
                _replace(folder / file.name, file, mode)
            _sync_folder(folder)
            for old in folder.glob(obsolete) if obsolete else ():
                if old.name not in {file.name for file in files}:
                    old.unlink(missing_ok=True)
        except OSError as error:
            raise error_class(explain("write to", folder, error)) from error
        finally:
            if draft is not None:
                shutil.rmtree(draft, ignore_errors=True)


def remove_abandoned(folder: Path, seconds: float = 3600.0) -> None:
    """Remove the temporary files and folders that killed writers left in `folder`.

    Args:
        folder: it need not exist, nor be writable.
        seconds: younger files stay, since their writers may be at work.
    """
    for path in folder.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):  # somebody else may remove it, too
            if time.time() - path.stat().st_mtime > seconds:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_atomic(
    path: str | os.PathLike[str],
    data: bytes | str,
    error_class: type[KalmanClipError] = KalmanClipError,
) -> None:
    """Write `data` (text as UTF-8, line ends as given) to `path`, completely or not at all."""
    with atomic_path(path, error_class) as temporary:
        temporary.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


def copy_new(source: Path, target: Path) -> None:
    """Copy a file with its times, completely or not at all; whatever is there already stays.

    Raises:
        FileExistsError: something is there.
        OSError: the file system refuses.
    """
    temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}{target.suffix}")
    try:
        shutil.copy2(source, temporary)
        try:
            os.link(temporary, target)  # unlike a renamed file, a linked one replaces nothing
        except FileExistsError:
            raise
        except OSError:  # no links on this disk: reserve the name with an empty file, and replace that
            target.open("x").close()
            temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_json_atomic(
    path: str | os.PathLike[str], value: Any, error_class: type[KalmanClipError] = KalmanClipError
) -> None:
    """Write `value` as indented, strict JSON (NaN and infinity are refused), completely or not at all."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        if not is_unicode(text):  # file names may be any bytes; escaped, they are read back as they were
            text = json.dumps(value, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise error_class(
            f"cannot write {os.fspath(path)}: {error} "
            "(use plain dicts, lists, strings, numbers and None; None instead of NaN)"
        ) from error
    write_atomic(path, text + "\n", error_class)


def read_json(path: str | os.PathLike[str], error_class: type[KalmanClipError] = KalmanClipError) -> Any:
    """Return what the JSON file `path` holds; a missing, unreadable or damaged file raises `error_class`."""
    try:
        return decode_json(check_path(path, error_class).read_text(encoding="utf-8-sig"), _no_number)
    except OSError as error:
        raise error_class(explain("read", path, error)) from error
    except ValueError as error:  # bad UTF-8 and bad JSON are both ValueErrors
        raise error_class(
            f"cannot read {os.fspath(path)}: it is not valid JSON: {error} "
            "(the file is damaged or was edited by hand; restore it or make it again)"
        ) from error


def decode_json(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return what a text of JSON means; whatever is wrong with it is a `ValueError`.

    Args:
        text: the text.
        parse_constant: what is made of NaN and infinity, which are not JSON; None: what Python makes of them.
    """
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _members(outer)]
    if level:
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"it has tables or lists within each other, more than {_DEEPEST} deep"


def _members(outer: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return outer.values() if isinstance(outer, dict) else outer


def read_options(path: str | os.PathLike[str], error_class: type[KalmanClipError] = KalmanClipError) -> dict[str, Any]:
    """Return the options of a person's JSON or YAML file, by its ending (.json, .yaml, .yml), as plain JSON values."""
    ending = Path(path).suffix.lower()
    if ending == ".json":
        options = read_json(path, error_class)
    elif ending in (".yaml", ".yml"):
        options = _read_yaml(path, error_class)
    else:
        raise error_class(f"The options file {os.fspath(path)} must have a name ending in .json, .yaml or .yml.")
    if not isinstance(options, dict):
        raise error_class(f"The options file {os.fspath(path)} must hold options by name, such as seed: 3.")
    return options


def _read_yaml(path: str | os.PathLike[str], error_class: type[KalmanClipError]) -> Any:
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
        return decode_json(json.dumps({} if values is None else values, allow_nan=False))
    except OSError as error:
        raise error_class(explain("read", path, error)) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # as are dates, and .nan
        said = " ".join(str(error).split())
        raise error_class(f"cannot read {os.fspath(path)}: it is not valid YAML of plain values: {said}") from error


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded; a file name whose bytes are no UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sha256_of(path: str | os.PathLike[str], error_class: type[KalmanClipError] = KalmanClipError) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits, reading it in pieces."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as stream:
            while piece := stream.read(_CHUNK):
                digest.update(piece)
    except OSError as error:
        raise error_class(explain("read", path, error)) from error
    return digest.hexdigest()
