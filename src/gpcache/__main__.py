"""`python -m gpcache` is the command `gpcache`."""

from gpcache.cli.app import main

if __name__ == "__main__":
    main()
