"""`drcl` and `python -m drcl`: hand over to the laboratory's command line."""

import sys


def main() -> None:
    try:
        from drcl.lab.cli.app import start
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] == "drcl":
            raise
        sys.exit(f'drcl: the command line needs {missing.name}, install it with: pip install "drcl[lab]"')
    start()


if __name__ == "__main__":
    main()
