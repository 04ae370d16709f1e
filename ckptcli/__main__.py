"""`python -m ckptcli`: the `ckpt` command."""

import sys

from ckptcli.app import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
