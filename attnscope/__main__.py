"""`attnscope` and `python -m attnscope`: the first of our lines to run."""

import sys


def entry() -> int:
    """Run the command line of this process, and return its exit status."""
    try:
        from attnscope.process import interrupt

        interrupt.install()
    except KeyboardInterrupt:  # it came before there was a handler
        from attnscope.process import interrupt

        interrupt.end()
    from attnscope.cli import app

    return app.entry()


if __name__ == "__main__":
    sys.exit(entry())
