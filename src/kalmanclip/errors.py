"""One exception hierarchy: whatever goes wrong on purpose derives from `KalmanClipError`.

Messages say what was wrong and what to do about it. The command line prints them without a traceback and
exits with the class's `exit_code`.
"""


class KalmanClipError(Exception):
    """Base of every error that kalmanclip raises deliberately."""

    exit_code = 1


class ConfigError(KalmanClipError, ValueError):
    """An option or argument has a value that cannot work."""

    exit_code = 2


class DataError(KalmanClipError, ValueError):
    """A folder, a list of images or its labels cannot be used."""

    exit_code = 3


class ImageError(DataError):
    """One image cannot be read."""


class ModelError(KalmanClipError, RuntimeError):
    """A backbone cannot be built, or its weights cannot be found or read."""

    exit_code = 4


class AdapterError(KalmanClipError, RuntimeError):
    """An adapter folder is missing, damaged, from another version, or belongs to another backbone."""

    exit_code = 5


class RepeatedImagesWarning(UserWarning):
    """Images are learned once more, and count twice."""


class NumericalError(KalmanClipError, ArithmeticError):
    """Mathematics that broke down (a matrix that should be positive definite is not, values are not finite)."""

    exit_code = 6


class RankError(KalmanClipError, RuntimeError):
    """One of several processes that work together died, hangs or disagrees; the others cannot go on without it."""

    exit_code = 7
