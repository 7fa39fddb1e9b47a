"""The interpreter of a page: `python driver.py FD` runs one Python block after another, in one module.

Lines of JSON come in on standard input, each a block with the line it has on its page. What a block prints goes where
standard output and standard error go. For each block a line of JSON goes out on the descriptor FD: how it ended.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import traceback
from types import ModuleType


def main() -> None:
    """Run blocks until there are no more."""
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    # As for a program in the folder of the page.
    sys.path[0] = os.getcwd()
    sys.argv = [""]
    while True:
        try:
            line = requests.readline()
        except KeyboardInterrupt:  # Ctrl-C for a block that had just ended.
            continue
        if not line:
            return
        answers.write(json.dumps({"ended": _run(module, **json.loads(line))}) + "\n")


def _run(module: ModuleType, page: str, line: int, source: str) -> str:
    """Return how the block ended: `ok`, `raised` or `interrupted`."""
    name = f"{page}:{line}"
    text = "\n" * (line - 1) + source + "\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        exec(compile(text, name, "exec"), module.__dict__)
    except KeyboardInterrupt:
        return "interrupted"
    except SystemExit as end:
        return "raised" if end.code else "ok"
    except BaseException as error:
        # Frames of this program are none of the reader's.
        shown = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        traceback.print_exception(shown)
        return "raised"
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return "ok"


if __name__ == "__main__":
    main()
