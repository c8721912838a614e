"""Writes C for the functions that the objects of a partial build lack: ops that fail and say so.
Only the emulated library of a build with some files left out has these. Usage: stubs.py *.o"""

from __future__ import annotations

import re
import subprocess
import sys


def names(option: str, objects: list[str]) -> set[str]:
    done = subprocess.run(["nm", option, *objects], capture_output=True, text=True, check=True)
    return set(re.findall(r"\b(_Z\d+mm_\w*)$", done.stdout, re.MULTILINE))


def main() -> None:
    objects = sys.argv[1:]
    missing = sorted(names("-u", objects) - names("--defined-only", objects))
    print("long emu_missing(const void *context, const char *name);")
    for i, name in enumerate(missing):
        found = re.match(r"_Z(\d+)(\w+)", name)
        assert found is not None
        plain = found[2][: int(found[1])]
        print(f'long stub_{i}(const void *context) __asm__("{name}");')
        fails = f'emu_missing(context, "{plain}")'
        result = "0" if plain.endswith(("_scratch", "_bytes")) else fails
        print(f"long stub_{i}(const void *context) {{ (void)context; return {result}; }}")
        print(f"not built: {plain}", file=sys.stderr)


if __name__ == "__main__":
    main()
