"""Prevents the import of pandas by commands that do not need it.

If pandas is installed, pyarrow imports it with the first conversion, which costs every command 0.4 s and 60 MiB. Only
the demo needs pandas.
"""

import sys
from importlib.abc import MetaPathFinder


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        """Refuses pandas; finds nothing."""
        if fullname == "pandas":
            raise ModuleNotFoundError("the scankv command does not import pandas", name=fullname)


_finder = _WithoutPandas()


def keep_pandas_out() -> None:
    """Makes imports of pandas fail. Call it before pyarrow converts anything: pyarrow tries the import only once."""
    sys.meta_path.insert(0, _finder)


def let_pandas_in() -> None:
    """Allows imports of pandas again."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
