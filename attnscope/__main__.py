"""The entry point of `attnscope` and `python -m attnscope`."""

import sys


def entry() -> int:
    """Run the command line of this process, and return its exit status."""
    try:
        from attnscope.base.process import interrupt

        interrupt.install()
    except KeyboardInterrupt:  # Ctrl-C before the handler was installed
        from attnscope.base.process import interrupt

        interrupt.end()
    from attnscope.cli import app

    return app.entry()


if __name__ == "__main__":
    sys.exit(entry())
