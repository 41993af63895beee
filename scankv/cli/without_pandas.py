"""Keeps pandas out of the processes of this command line.

Arrow imports pandas, where it is installed, with its first conversion: 0.4 s and 60 MiB for every command. None needs
it but the demo.
"""

import sys
from importlib.abc import MetaPathFinder


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        """Refuses pandas; finds nothing."""
        if fullname == "pandas":
            raise ModuleNotFoundError("the command line does without pandas", name=fullname)


_finder = _WithoutPandas()


def keep_pandas_out() -> None:
    """From now on pandas cannot be imported. Before Arrow converts anything: it asks only once."""
    sys.meta_path.insert(0, _finder)


def let_pandas_in() -> None:
    """Ends that, if it was begun."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
