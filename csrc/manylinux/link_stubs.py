"""Write stubs of the C and C++ libraries to link against, which have only what manylinux_2_28 allows.

    python csrc/manylinux/link_stubs.py FOLDER COMPILER

The linker takes the newest version that a library offers of each function, so that what is linked on a new
system does not load on an older one. Each stub offers, of this machine's library, the newest version that
the policy knows. A function that is newer than the policy is missing, and ends the link.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The newest versions of PEP 600's manylinux_2_28, as auditwheel's policy has them.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (8, 0, 0)}
LIBRARIES = {"libc.so": "libc.so.6", "libm.so": "libm.so.6", "libstdc++.so": "libstdc++.so.6"}
LIBRARIES |= {"libgcc_s.so": "libgcc_s.so.1"}
LOADER = "ld-linux-x86-64.so.2"
# A symbol of `readelf --dyn-syms`: its size, type, section, name and version; one "@": not the default.
ROW = re.compile(r"^ *\d+: \w+ +(\w+) +(\w+) +(?:GLOBAL|WEAK|UNIQUE) +DEFAULT +(\S+) (\w+)@@?(\w+[\w.]*)")


@dataclass(frozen=True)
class Symbol:
    """What a library exports: a function, or a variable of `size` bytes (`thread`: one for each thread)."""

    name: str
    version: str
    kind: str
    size: int


def main() -> None:
    """Write all stubs."""
    folder, compiler = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    for link_name, soname in LIBRARIES.items():
        symbols = newest_allowed(exported(library_file(compiler, soname)))
        write_stub(folder / soname, symbols, compiler)
        # Beside it, as in the system's own libc.so: the variables of threads, and atexit.
        beside = f"{library_file(compiler, 'libc_nonshared.a')} AS_NEEDED({library_file(compiler, LOADER)})"
        (folder / link_name).write_text(f"GROUP({folder / soname} {beside})\n")


def library_file(compiler: str, soname: str) -> Path:
    """Return where the compiler finds a library."""
    told = subprocess.run(
        [compiler, f"-print-file-name={soname}"], capture_output=True, text=True, check=True
    )
    return Path(told.stdout.strip())


def exported(library: Path) -> Iterator[Symbol]:
    """Yield what a library exports under a version."""
    told = subprocess.run(
        ["readelf", "--wide", "--dyn-syms", str(library)], capture_output=True, text=True, check=True
    )
    for line in told.stdout.splitlines():
        row = ROW.match(line)
        if row is not None and row[3] not in ("UND", "ABS"):
            yield Symbol(row[4], row[5], row[2], int(row[1], 0))


def newest_allowed(symbols: Iterator[Symbol]) -> list[Symbol]:
    """Return of each symbol the newest version that the policy has."""
    newest: dict[str, Symbol] = {}
    for symbol in symbols:
        number = numbered(symbol.version)
        if number is None:
            continue
        if symbol.name not in newest or number > (numbered(newest[symbol.name].version) or ()):
            newest[symbol.name] = symbol
    return sorted(newest.values(), key=lambda symbol: symbol.name)


def numbered(version: str) -> tuple[int, ...] | None:
    """Return the number of an allowed version, as (2, 28); None: newer, or private to the library."""
    name, _, number = version.partition("_")
    if name not in NEWEST or not re.fullmatch(r"[0-9.]+", number):
        return None
    parts = tuple(map(int, number.split(".")))
    return parts if parts <= NEWEST[name] else None


def write_stub(stub: Path, symbols: list[Symbol], compiler: str) -> None:
    """Compile a library that exports `symbols` under their versions and does nothing."""
    lines = [".text"]
    for number, symbol in enumerate(symbols):
        kind = {"FUNC": "function", "IFUNC": "function", "TLS": "tls_object"}.get(symbol.kind, "object")
        if kind == "tls_object":
            lines.append('.section .tbss,"awT",@nobits')
        elif kind == "object":
            lines.append(".bss")
        else:
            lines.append(".text")
        lines += [f".globl stub_{number}", f".type stub_{number}, @{kind}", f"stub_{number}:"]
        lines += [f".skip {max(symbol.size, 1)}" if kind != "function" else "ret"]
        lines += [f".size stub_{number}, {max(symbol.size, 1)}"]
        lines += [f".symver stub_{number}, {symbol.name}@@{symbol.version}, remove"]
    source, versions = stub.with_suffix(".s"), stub.with_suffix(".versions")
    source.write_text("\n".join(lines) + "\n")
    names = sorted({symbol.version for symbol in symbols})
    versions.write_text("".join(f"{name} {{}};\n" for name in names))
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{stub.name}", f"-Wl,--version-script,{versions}"]
    subprocess.run([compiler, *options, "-o", str(stub), str(source)], check=True)


if __name__ == "__main__":
    main()
