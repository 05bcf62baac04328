# SPDX-License-Identifier: Apache-2.0
"""What `make check` finds in an extension that no wheel for glibc 2.17 could be made of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = ROOT / "tests" / "native" / "check_extensions.py"


def checked(folder: Path, body: str, name: str = "made.abi3.so") -> tuple[int, str]:
    """Compiles a library with BODY as its only function, and checks it."""
    source, made = folder / "made.c", folder / name
    source.write_text(f"#define _GNU_SOURCE\n{body}\n")
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    done = subprocess.run(
        [sys.executable, str(CHECK), str(made)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "#include <string.h>\nint f(const char *a) { return strcmp(a, a + 1); }",
        '#include <sys/stat.h>\nint f(void) { struct stat s; return stat("/", &s) + fstatat(0, "", &s, 0); }',
        "#include <pthread.h>\nint f(pthread_t *t) { return pthread_create(t, 0, 0, 0); }",
    ],
)
def test_what_glibc_has_had_for_long_is_taken(tmp_path, body):
    assert checked(tmp_path, body) == (0, "")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("#include <sys/random.h>\nlong f(char *a) { return getrandom(a, 1, 0); }", "uses getrandom, which"),
        ("#include <sys/stat.h>\nint f(struct statx *s) { return statx(0, \"\", 0, 0, s); }", "uses statx, which"),
    ],
)  # fmt: skip
def test_what_is_newer_is_named(tmp_path, body, says):
    code, said = checked(tmp_path, body)
    assert code == 1 and says in said


def test_an_extension_of_one_version_of_python_is_refused(tmp_path):
    code, said = checked(tmp_path, "int f(void) { return 0; }", "made.cpython-311-x86_64-linux-gnu.so")
    assert code == 1 and "the limited API" in said


def test_files_that_are_not_there_are_said(tmp_path):
    done = subprocess.run(
        [sys.executable, str(CHECK), str(tmp_path / "x.so")], capture_output=True, check=False
    )
    assert done.returncode == 2
