"""`python -m attnscope`."""

import sys

from attnscope.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
