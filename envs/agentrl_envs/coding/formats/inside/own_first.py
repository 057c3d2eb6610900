"""Installed as `sitecustomize` before tests run: modules of the interpreter come before modules of the work folder.

Otherwise a file of the agent, such as pytest.py or json.py, would replace a module that the tests need. Modules that
the work folder had before the agent began still come first.
"""

# For every Python since 3.5, as images have them: hence the quotes.
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec

WORK, KNOWN = "@WORK@", "@KNOWN@"
RUNNERS = (
    *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli", "pygments", "attr"),
    *("nose", "xdist", "execnet", "hypothesis", "coverage", "pytest_cov", "setuptools", "pip", "pkg_resources"),
    *("sitecustomize", "usercustomize"),
)
HERE = os.path.dirname(os.path.abspath(__file__))


def is_own(path: str) -> bool:
    return os.path.isabs(path) and path != HERE and not (path + "/").startswith(WORK.rstrip("/") + "/")


OWN = [path for path in sys.path if is_own(path)]
LIBRARY = os.path.dirname(os.__file__) + "/"


def known() -> "set[str] | None":
    """The names of modules that the work folder had before the agent began. None if unknown."""
    try:
        with open(KNOWN) as names:
            return {name.strip().partition(".")[0] for name in names}
    except OSError:
        return None


BEFORE = known()


def is_kept(name: str, spec: ModuleSpec) -> bool:
    """Whether the interpreter's module is used, even if the work folder has a module of the same name."""
    if BEFORE is not None:
        return name not in BEFORE
    place = spec.origin or ""
    return name in RUNNERS or (place.startswith(LIBRARY) and "-packages" not in place)


class OwnFirst:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if path is not None or name in sys.builtin_module_names:
            return None
        spec = PathFinder.find_spec(name, OWN)
        return spec if spec is not None and spec.loader is not None and is_kept(name, spec) else None


sys.meta_path.insert(0, OwnFirst)
image_own = PathFinder.find_spec("sitecustomize", OWN)  # whose place this file takes
if image_own is not None and image_own.loader is not None:
    image_own.loader.exec_module(module_from_spec(image_own))
