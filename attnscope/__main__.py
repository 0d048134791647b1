"""`python -m attnscope`."""

import sys

from attnscope.cli.app import entry

if __name__ == "__main__":
    sys.exit(entry())
